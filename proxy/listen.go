//go:build linux

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// ServeTransparent serves connections that were redirected to ln until ctx ends.
// It closes ln, aborts what is still being read and returns when every goroutine
// of it is gone; relays belong to Config.Flows and live on until that is closed.
func (p *Proxy) ServeTransparent(ctx context.Context, ln *net.TCPListener) error {
	own, err := addrPort(ln.Addr())
	if err != nil {
		return fmt.Errorf("proxy: serve: %w", err)
	}
	return p.serve(ctx, ln, func(ctx context.Context, c *client) {
		dst, err := p.cfg.OriginalDst(c.tcp)
		if err != nil {
			p.internal(c, err)
			return
		}
		c.dst = dst
		switch {
		case p.isExplicit(dst):
			p.explicitConn(ctx, c)
		case dst == own || p.cfg.Local(dst.Addr()) || p.isNowhere(dst):
			// One connection dialled to ourselves would become hundreds (bypass B37).
			p.refuse(c, subject{dst: dst.Addr(), port: dst.Port()}, policy.ReasonSpecialAddress)
		default:
			p.transparentConn(ctx, c)
		}
	})
}

// isNowhere: a destination that no name could make dialable, loopback above all,
// unless an address target opens it.
func (p *Proxy) isNowhere(dst netip.AddrPort) bool {
	if !unroutable(dst.Addr()) {
		return false
	}
	pol := p.cfg.Policy.Load()
	return pol == nil || !p.opens(pol, dst.Addr(), dst.Port())
}

// ServeExplicit serves clients that know they speak to a proxy: CONNECT and
// absolute-form requests. It ends as ServeTransparent does.
func (p *Proxy) ServeExplicit(ctx context.Context, ln *net.TCPListener) error {
	own, err := addrPort(ln.Addr())
	if err != nil {
		return fmt.Errorf("proxy: serve: %w", err)
	}
	p.setExplicit(own, true)
	defer p.setExplicit(own, false)
	return p.serve(ctx, ln, p.explicitConn)
}

// serve accepts until ctx ends. No error of accept ends it: a proxy that exits
// for want of descriptors takes the sandbox's only way out with it.
func (p *Proxy) serve(ctx context.Context, ln *net.TCPListener, handle func(context.Context, *client)) error {
	held := &holder{open: map[*client]struct{}{}}
	stop := context.AfterFunc(ctx, func() {
		// Both only hasten the end; ln may have been closed by its owner.
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			p.lifecycle("close listener: " + err.Error())
		}
		held.abortAll()
	})
	defer stop()
	defer held.wg.Wait()
	reserve := openReserve()
	defer reserve.close()
	backoff := 5 * time.Millisecond
	for {
		conn, err := ln.AcceptTCP()
		if err == nil {
			backoff = 5 * time.Millisecond
			p.admit(ctx, held, conn, handle)
			continue
		}
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			held.abortAll()
			return ctx.Err()
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			reserve.shed(ln)
			p.event(audit.Event{Kind: audit.KindDecision, Reason: policy.ReasonLimit, Message: "out of descriptors"})
		}
		if !pause(ctx, backoff) {
			return ctx.Err()
		}
		backoff = min(2*backoff, time.Second)
	}
}

// admit counts a connection in and starts its goroutine, or resets it when there
// are too many.
func (p *Proxy) admit(ctx context.Context, held *holder, conn *net.TCPConn, handle func(context.Context, *client)) {
	c := &client{p: p, tcp: conn, in: conn}
	if p.conns.Add(1) > int64(p.cfg.Limits.MaxConns) {
		p.conns.Add(-1)
		p.event(audit.Event{Kind: audit.KindDecision, Reason: policy.ReasonLimit, Message: "too many connections"})
		reset(conn)
		return
	}
	if !held.add(c) {
		p.conns.Add(-1)
		reset(conn)
		return
	}
	go func() {
		defer held.done(c)
		handle(ctx, c)
		c.finish()
	}()
}

// pause waits for d; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// holder knows the connections whose goroutines run, so that a stop can end them.
type holder struct {
	wg      sync.WaitGroup
	mu      sync.Mutex
	open    map[*client]struct{}
	stopped bool
}

func (h *holder) add(c *client) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return false
	}
	h.wg.Add(1)
	h.open[c] = struct{}{}
	return true
}

func (h *holder) done(c *client) {
	h.mu.Lock()
	delete(h.open, c)
	h.mu.Unlock()
	h.wg.Done()
}

func (h *holder) abortAll() {
	h.mu.Lock()
	h.stopped = true
	clients := make([]*client, 0, len(h.open))
	for c := range h.open {
		clients = append(clients, c)
	}
	h.mu.Unlock()
	for _, c := range clients {
		c.interrupt()
	}
}

// reserveFD is a descriptor kept for the moment when there are none left: given
// up, it lets one connection be accepted and reset, which empties the queue that
// would otherwise hang its clients.
type reserveFD struct{ f *os.File }

func openReserve() *reserveFD {
	f, err := os.Open("/dev/null")
	if err != nil {
		// Already out of descriptors: shed tries again.
		return &reserveFD{}
	}
	return &reserveFD{f: f}
}

func (r *reserveFD) close() {
	if r.f != nil {
		r.f.Close()
		r.f = nil
	}
}

func (r *reserveFD) shed(ln *net.TCPListener) {
	if r.f != nil {
		r.close()
		if err := ln.SetDeadline(time.Now().Add(10 * time.Millisecond)); err == nil {
			if conn, err := ln.AcceptTCP(); err == nil {
				reset(conn)
			}
			// A listener that lost its deadline handling would spin, not hang.
			if err := ln.SetDeadline(time.Time{}); err != nil {
				return
			}
		}
	}
	*r = *openReserve()
}
