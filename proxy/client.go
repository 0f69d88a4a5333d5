//go:build linux

package proxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// errTooLong: a first message that is longer than Limits.SniffBytes.
var errTooLong = errors.New("first message too long")

// client is one client connection while its own goroutine has it. What is read
// of it is recorded until it is known what to do with it.
type client struct {
	p *Proxy
	// tcp is nil while the connection is an arrival.
	tcp  *net.TCPConn
	peer netip.AddrPort
	// waited is how long the client was waited for before its goroutine began.
	waited time.Duration
	// in is what is read of it: tcp, or the arrival's socket.
	in io.Reader
	// arriving is the tunnel that the connection is to become, while it is an
	// arrival.
	arriving atomic.Pointer[tunnel]
	// dst is where it was going; for CONNECT to an address, that address.
	dst netip.AddrPort
	// authority is the name of a CONNECT: what is inside must show the same.
	authority string
	// recorded is what was read and not yet passed on; next is how much of it the
	// reader of the moment has seen.
	recorded []byte
	next     int
	pooled   *[]byte
	// handed says that a relay owns the socket now.
	handed bool
	// first says which side spoke first; both may try to set it, once.
	first atomic.Int32
}

// Who spoke first.
const (
	nobody int32 = iota
	theClient
	theUpstream
)

// spoke settles who spoke first; false when the other side did.
func (c *client) spoke(side int32) bool {
	return c.first.CompareAndSwap(nobody, side) || c.first.Load() == side
}

// noDeadline clears a deadline.
var noDeadline time.Time

var buffers = sync.Pool{New: func() any { b := make([]byte, 4096); return &b }}

func getBuffer() *[]byte  { return buffers.Get().(*[]byte) }
func putBuffer(b *[]byte) { buffers.Put(b) }

// Read gives the recorded bytes that were not seen yet, then the connection's,
// which it records.
func (c *client) Read(b []byte) (int, error) {
	if c.next < len(c.recorded) {
		n := copy(b, c.recorded[c.next:])
		c.next += n
		return n, nil
	}
	n, err := c.more()
	if n == 0 {
		return 0, err
	}
	n = copy(b, c.recorded[c.next:])
	c.next += n
	return n, nil
}

// more records what the connection gives next.
func (c *client) more() (int, error) {
	if c.recorded == nil {
		c.pooled = getBuffer()
		c.recorded = (*c.pooled)[:0]
	}
	if len(c.recorded) >= c.p.cfg.Limits.SniffBytes {
		return 0, errTooLong
	}
	if len(c.recorded) == cap(c.recorded) {
		grown := make([]byte, len(c.recorded), min(4*cap(c.recorded), max(c.p.cfg.Limits.SniffBytes, 4096)))
		copy(grown, c.recorded)
		c.recorded = grown
	}
	n, err := c.in.Read(c.recorded[len(c.recorded):cap(c.recorded)])
	c.recorded = c.recorded[:len(c.recorded)+n]
	if n > 0 {
		// An error comes again.
		return n, nil
	}
	return 0, err
}

// forget gives the recorded bytes up; they must have been passed on.
func (c *client) forget() {
	if c.pooled != nil {
		putBuffer(c.pooled)
	}
	c.recorded, c.pooled, c.next = nil, nil, 0
}

// wake makes a pending read of a client that has not spoken yet return.
func (c *client) wake() {
	if c.spoke(theUpstream) {
		c.deadline(time.Unix(1, 0))
	}
}

// deadline sets when reads of the client time out; the zero time is never. A
// connection without deadlines is a closed one, which its next read says.
func (c *client) deadline(t time.Time) {
	if err := c.tcp.SetReadDeadline(t); err != nil && !errors.Is(err, net.ErrClosed) {
		c.reset()
	}
}

// interrupt ends the connection from another goroutine. One that stops being an
// arrival meanwhile asks whether it was interrupted.
func (c *client) interrupt() {
	if t := c.arriving.Load(); t != nil {
		t.abort(ErrCut)
		c.p.cfg.Flows.nudge()
		return
	}
	c.reset()
}

// finish is the end of the connection's goroutine.
func (c *client) finish() {
	c.forget()
	if c.handed {
		return
	}
	c.p.conns.Add(-1)
	// Closing twice is how a reset ends.
	if err := c.tcp.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.p.lifecycle("close: " + err.Error())
	}
}

// helloConn is a client as crypto/tls sees it while it reads a ClientHello: a
// net.Conn that swallows what is said back.
type helloConn struct {
	*client
	found bool
	hello clientHello
}

func (*helloConn) Write(b []byte) (int, error)      { return len(b), nil }
func (*helloConn) Close() error                     { return nil }
func (h *helloConn) LocalAddr() net.Addr            { return h.tcp.LocalAddr() }
func (h *helloConn) RemoteAddr() net.Addr           { return h.tcp.RemoteAddr() }
func (*helloConn) SetDeadline(time.Time) error      { return nil }
func (*helloConn) SetReadDeadline(time.Time) error  { return nil }
func (*helloConn) SetWriteDeadline(time.Time) error { return nil }

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
func isEOF(err error) bool     { return errors.Is(err, io.EOF) }
