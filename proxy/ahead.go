//go:build linux

package proxy

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"github.com/exeat/exeat/policy"
)

// failureGrace is how long a client may still speak first after the address that
// it chose turned out dead: what it then names may have others.
const failureGrace = 250 * time.Millisecond

// ahead is an upstream dialled while the client is being read, for protocols in
// which the server speaks first. Nothing of the client's is sent to it.
type ahead struct {
	cancel context.CancelFunc
	done   chan struct{}

	// taken is closed when the client has spoken.
	taken chan struct{}

	mu      sync.Mutex
	stopped bool
	conn    *net.TCPConn

	// up and err are final when done is closed.
	up  upstream
	err error
}

// dialAhead dials v unless up is dialled already, and wakes the client's reader
// when the upstream speaks, ends or cannot be reached.
func (p *Proxy) dialAhead(ctx context.Context, c *client, pol *policy.Compiled, v verdict, up upstream) *ahead {
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{cancel: cancel, done: make(chan struct{}), taken: make(chan struct{}), up: up}
	go func() {
		defer close(a.done)
		a.listen(ctx, c, func() (upstream, error) {
			if up.tcp != nil {
				return up, nil
			}
			r, _, err := p.route(ctx, pol, v)
			if err != nil {
				return upstream{}, err
			}
			return p.dial(ctx, r)
		})
	}()
	return a
}

// listen dials and waits for the upstream's first bytes.
func (a *ahead) listen(ctx context.Context, c *client, dial func() (upstream, error)) {
	a.up, a.err = dial()
	if a.err != nil {
		a.grace(ctx, c)
		return
	}
	a.mu.Lock()
	if a.stopped {
		a.mu.Unlock()
		return
	}
	a.conn = a.up.tcp
	a.mu.Unlock()
	if len(a.up.early) > 0 {
		c.wake()
		return
	}
	buf := getBuffer()
	defer putBuffer(buf)
	n, err := a.up.tcp.Read(*buf)
	a.up.early = append(a.up.early, (*buf)[:n]...)
	switch {
	case err != nil && isTimeout(err):
		// Stopped: the client spoke first.
		return
	case err != nil && n == 0 && !isEOF(err):
		reset(a.up.tcp)
		a.up, a.err = upstream{}, err
	case isHTTP2Settings(a.up.early):
		// gRPC servers send their settings without waiting for the client's preface.
		// That decides nothing: the client's streams are to be judged (bypass B54).
		return
	}
	c.wake()
}

// grace lets the client speak for a while, then wakes it.
func (a *ahead) grace(ctx context.Context, c *client) {
	t := time.NewTimer(failureGrace)
	defer t.Stop()
	select {
	case <-t.C:
		c.wake()
	case <-a.taken:
	case <-ctx.Done():
	}
}

// isHTTP2Settings says that b begins with a SETTINGS frame (RFC 9113 section 6.5):
// type 4, no flags, stream 0, a multiple of 6 bytes.
func isHTTP2Settings(b []byte) bool {
	return len(b) >= 9 && b[0] == 0 && (int(b[1])<<8|int(b[2]))%6 == 0 && bytes.Equal(b[3:9], []byte{4, 0, 0, 0, 0, 0})
}

// take ends the waiting and gives the connection, once it is dialled.
func (a *ahead) take() (upstream, error) {
	a.mu.Lock()
	a.stopped = true
	conn := a.conn
	a.mu.Unlock()
	close(a.taken)
	if conn != nil {
		// Where it cannot be set the connection is closed, and listen has returned.
		if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			a.cancel()
		}
	}
	<-a.done
	a.cancel()
	if a.err != nil {
		return upstream{}, a.err
	}
	if err := a.up.tcp.SetReadDeadline(time.Time{}); err != nil {
		reset(a.up.tcp)
		return upstream{}, err
	}
	return a.up, nil
}

// discard ends the waiting and closes what was dialled.
func (a *ahead) discard() {
	a.cancel()
	if up, err := a.take(); err == nil {
		reset(up.tcp)
	}
}
