package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// portSlots is how many source ports a pool draws from, and portLife how many
	// questions each is used for (bypass B43).
	portSlots = 256
	portLife  = 1000
	// foldedWait is how much longer a reply of the right letter case is waited for
	// once one of the wrong case has come.
	foldedWait = 100 * time.Millisecond
	// maxUDPReply is more than we announce; what is longer is asked for again by TCP.
	maxUDPReply = 4096
)

// errUseStream says that UDP does not carry this answer.
var errUseStream = errors.New("ask again by stream")

// ports is a pool of connected UDP sockets. A question draws one at random and
// has it to itself; what comes late for the one before it does not match and is
// ignored. The zero value works.
type ports struct {
	mu     sync.Mutex
	closed bool
	slots  [portSlots]port
}

type port struct {
	conn net.Conn
	used int
	busy bool
}

// take gives a socket to ask from and the slot it belongs to, -1 for one beside
// the pool; reused says that earlier questions went through it.
func (p *ports) take(draw int, dial func() (net.Conn, error)) (conn net.Conn, slot int, reused bool, err error) {
	p.mu.Lock()
	slot = -1
	for i := range portSlots {
		if s := (draw + i) % portSlots; !p.slots[s].busy {
			slot = s
			break
		}
	}
	if p.closed {
		p.mu.Unlock()
		return nil, -1, false, net.ErrClosed
	}
	if slot >= 0 {
		p.slots[slot].busy = true
		conn = p.slots[slot].conn
	}
	p.mu.Unlock()
	if conn != nil {
		return conn, slot, true, nil
	}
	conn, err = dial()
	p.mu.Lock()
	defer p.mu.Unlock()
	if slot >= 0 {
		p.slots[slot] = port{conn: conn, busy: err == nil}
	}
	if err != nil {
		return nil, -1, false, err
	}
	return conn, slot, false, nil
}

// give returns a socket; broken ones, worn ones and those beside the pool end.
func (p *ports) give(conn net.Conn, slot int, broken bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slot < 0 {
		return conn.Close()
	}
	at := &p.slots[slot]
	at.busy = false
	if at.used++; broken || p.closed || at.used >= portLife {
		*at = port{}
		return conn.Close()
	}
	return nil
}

// close ends the idle sockets; busy ones end as they are given back.
func (p *ports) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for i := range p.slots {
		if at := &p.slots[i]; at.conn != nil && !at.busy {
			closeQuietly(at.conn)
			*at = port{}
		}
	}
}

// exchangeUDP asks from one socket until a reply that matches exactly has come.
func (u *upstream) exchangeUDP(e *epoch, deadline time.Time, w *query) (got, error) {
	dial := func() (net.Conn, error) {
		return u.server.cfg.Dial.DialContext(e.ctx, "udp", u.Addr.String())
	}
	if u.ports == nil {
		conn, err := dial()
		if err != nil {
			return got{}, err
		}
		defer closeQuietly(conn)
		return u.converse(e, deadline, conn, w)
	}
	for {
		conn, slot, reused, err := u.ports.take(w.slot(portSlots), dial)
		if err != nil {
			return got{}, err
		}
		m, err := u.converse(e, deadline, conn, w)
		// Once the epoch has ended, its interruption may still be on its way to the socket.
		broken := err != nil && !errors.Is(err, errUseStream) || e.ctx.Err() != nil
		if closeErr := u.ports.give(conn, slot, broken); closeErr != nil {
			return got{}, closeErr
		}
		if err != nil && broken && reused && !errors.Is(err, os.ErrDeadlineExceeded) && e.ctx.Err() == nil {
			continue // the error may be the answer to an earlier question (ICMP)
		}
		return m, err
	}
}

// converse sends w and reads until its reply, ignoring whatever else arrives.
func (u *upstream) converse(e *epoch, deadline time.Time, conn net.Conn, w *query) (got, error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return got{}, err
	}
	stop := context.AfterFunc(e.ctx, func() { interrupt(conn) })
	defer stop()
	buf := u.server.replyBuffer()
	defer u.server.replies.Put(buf)
	folded := false
	for unsent := w.bytes(); ; unsent = nil {
		n, err := sendAndRead(e, conn, unsent, buf[:])
		if err != nil {
			if folded && errors.Is(err, os.ErrDeadlineExceeded) && e.ctx.Err() == nil {
				u.folds.Store(true)
				return got{}, errUseStream
			}
			return got{}, err
		}
		switch w.match(buf[:n]) {
		case matchNone:
			continue
		case matchFolded:
			if soon := time.Now().Add(foldedWait); !folded && soon.Before(deadline) {
				folded = true
				if err := conn.SetReadDeadline(soon); err != nil {
					return got{}, err
				}
			}
			continue
		case matchExact:
		}
		if truncated(buf[:n]) || n == maxUDPReply {
			return got{}, errUseStream
		}
		if p, ok := w.readPlain(buf[:n]); ok {
			return got{plain: p}, nil
		}
		m := new(dns.Msg)
		if err := m.Unpack(buf[:n]); err != nil {
			return got{}, fmt.Errorf("reply does not parse: %w", err)
		}
		return got{Msg: m}, nil
	}
}

// interrupt makes a blocked Read return; on a socket that is closed already there
// is none.
func interrupt(conn net.Conn) {
	if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return
	}
}

// replyBuffer gives room for one UDP reply, or packing one; put it back into replies.
func (s *Server) replyBuffer() *[maxUDPReply]byte {
	if buf, ok := s.replies.Get().(*[maxUDPReply]byte); ok {
		return buf
	}
	return new([maxUDPReply]byte)
}

// sendOne writes one message unless the epoch has ended.
func sendOne(e *epoch, conn net.Conn, msg []byte) error {
	if !e.beginSend() {
		return errSwapped
	}
	defer e.endSend()
	return writeTo(conn, msg)
}

// sendThenRead sends msg, unless it is nil, and reads what comes next.
func sendThenRead(e *epoch, conn net.Conn, msg, into []byte) (int, error) {
	if msg != nil {
		if err := sendOne(e, conn, msg); err != nil {
			return 0, err
		}
	}
	return conn.Read(into)
}

// closeQuietly closes a socket whose failure to close tells nobody anything:
// nothing written to it is waited for.
func closeQuietly(c interface{ Close() error }) {
	if err := c.Close(); err != nil {
		return
	}
}
