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
	// A TCPListener lets nobody wait but its own Accept.
	in, err := ln.File()
	if err != nil {
		return fmt.Errorf("proxy: serve: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { in.Close() }) // a duplicate: nothing is lost
	defer stop()
	raw, err := in.SyscallConn()
	if err == nil {
		err = inherited(raw)
	}
	if err != nil {
		return fmt.Errorf("proxy: serve: %w", errors.Join(err, in.Close()))
	}
	d := &door{p: p, own: own, held: newHolder()}
	return p.serve(ctx, ln, d.held, func() (bool, error) {
		fd, peer, waited, err := acceptFrom(raw)
		if err == nil {
			d.enter(ctx, fd, peer)
		}
		return waited, err
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
	held := newHolder()
	return p.serve(ctx, ln, held, func() (bool, error) {
		conn, err := ln.AcceptTCP()
		if err != nil {
			return false, err
		}
		if !p.room() {
			reset(conn)
			return false, nil
		}
		c := &client{p: p, tcp: conn, in: conn}
		if peer, err := addrPort(conn.RemoteAddr()); err == nil {
			c.peer = peer
		}
		c.begin(ctx, held, p.explicitConn)
		return false, nil
	})
}

// serve has accept take one connection after the other until ctx ends. No error of
// accept ends it: a proxy that exits for want of descriptors takes the sandbox's
// only way out with it.
func (p *Proxy) serve(ctx context.Context, ln *net.TCPListener, held *holder, accept func() (waited bool, err error)) error {
	turns, err := newTurns()
	if err != nil {
		return fmt.Errorf("proxy: serve: %w", errors.Join(err, ln.Close()))
	}
	defer turns.close()
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
		waited, err := accept()
		if err == nil {
			err = turns.taken(waited)
		}
		if err == nil {
			backoff = 5 * time.Millisecond
			continue
		}
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
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

// room counts a connection in; false, and said so, when there are too many.
func (p *Proxy) room() bool {
	if p.conns.Add(1) > int64(p.cfg.Limits.MaxConns) {
		p.conns.Add(-1)
		p.event(audit.Event{Kind: audit.KindDecision, Reason: policy.ReasonLimit, Message: "too many connections"})
		return false
	}
	return true
}

// begin starts the goroutine of a connection that there was room for.
func (c *client) begin(ctx context.Context, held *holder, handle func(context.Context, *client)) {
	if !held.add(c) {
		c.reset()
		c.finish()
		return
	}
	c.run(ctx, held, handle)
}

// run is begin for a connection that is held already.
func (c *client) run(ctx context.Context, held *holder, handle func(context.Context, *client)) {
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

// holder knows the connections that are not relayed yet, so that a stop can end
// them.
type holder struct {
	wg      sync.WaitGroup
	mu      sync.Mutex
	open    map[*client]struct{}
	stopped bool
}

func newHolder() *holder { return &holder{open: map[*client]struct{}{}} }

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

// over says that everything is being ended.
func (h *holder) over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stopped
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
