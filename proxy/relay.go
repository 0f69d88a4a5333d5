//go:build linux

package proxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// How a relay ends other than by both sides closing in order.
var (
	// ErrClientReset: the client reset its connection; the upstream's was reset too.
	ErrClientReset = errors.New("client reset the connection")
	// ErrUpstreamReset: the upstream reset its connection; the client's was reset too.
	ErrUpstreamReset = errors.New("upstream reset the connection")
	// ErrRevoked: a newer policy forbids the flow; both connections were reset.
	ErrRevoked = errors.New("revoked by a newer policy")
	// ErrCut: the flow was cut by hand, or everything is closing.
	ErrCut = errors.New("cut")
)

// Relay joins two connections until both directions have ended, and counts into
// f. It owns both connections from here on and closes them. It neither buffers
// nor times anything: a side that is silent may be silent for ever. What was
// read ahead from either side must have been forwarded before.
//
// The calling goroutine waits, which costs its stack. Start does not.
func Relay(f *Flow, client, upstream *net.TCPConn) error {
	ended := make(chan error, 1)
	Start(f, client, upstream, func(err error) { ended <- err })
	return <-ended
}

// Start is Relay without waiting: it returns at once, and done is called with
// the outcome when both connections are closed. done runs on a goroutine that
// other relays share, so it must not block (Flow.End does not). A handler whose
// last call is Start leaves no goroutine behind: an idle tunnel then costs two
// descriptors and about a kilobyte.
func Start(f *Flow, client, upstream *net.TCPConn, done func(error)) {
	t := &tunnel{flow: f, done: done}
	err := errors.Join(t.ends[clientEnd].adopt(client), t.ends[upstreamEnd].adopt(upstream))
	if err == nil {
		err = f.relayBy(t)
	}
	if err != nil {
		t.refuse(err)
	}
}

// The two ends of a tunnel, and the directions named after the end they read from.
const (
	clientEnd   = 0
	upstreamEnd = 1
)

// tunnel is one relay: two sockets, and what is on its way between them. Its
// worker alone touches it, except where mu is named.
type tunnel struct {
	flow   *Flow
	worker *worker
	done   func(error)
	ends   [2]end
	ways   [2]way
	// again says that the worker has more to do for this tunnel at once.
	again bool
	slot  uint32
	// arrival is set until the tunnel is a flow's.
	arrival *arrival

	// mu is held while bytes are moved, so that whoever aborts the tunnel knows
	// that none are; and it guards the descriptors' being open, so that a number is
	// never reset after it was closed and given to somebody else.
	mu      sync.Mutex
	moved   time.Duration // the worker's clock at the last event
	closed  bool
	aborted error
}

// end is one socket of a tunnel. readable and writable are what the last events
// and calls said: events are edge-triggered, so they hold until a call says EAGAIN.
type end struct {
	fd       int
	readable bool
	writable bool
	// watched says that the end of a full send queue is waited for.
	watched bool
	// urgent: out-of-band data is about; reads stop short at its mark, so a short
	// read does not mean that nothing is left.
	urgent bool
	// hung: the peer has sent its last byte; read on until the end is found.
	hung bool
	// failed: the connection was reset, or timed out.
	failed bool
	// dead: we have reset it. The tunnel's mu guards it.
	dead bool
	// conn is what the socket was taken over from, until detach. It stays where
	// there was no descriptor to spare: fd is the connection's own then (borrowed).
	borrowed bool
	conn     *net.TCPConn
}

// way is what is under way from one end to the other. A pipe, or a buffer, is
// held only while the receiver has no room.
type way struct {
	pipe *pipe
	rest []byte
	// bulk: so much came at once that splicing pays.
	bulk  bool
	ended bool // no more bytes come from this side
	done  bool // and the receiver was told
}

// adopt duplicates the connection's descriptor, or borrows it where there is none
// to spare.
func (e *end) adopt(c *net.TCPConn) error {
	e.fd, e.writable, e.conn = -1, true, c
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	err = raw.Control(func(fd uintptr) {
		own, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		if e.borrowed = err != nil; e.borrowed {
			own = int(fd)
		}
		e.fd = own
	})
	if err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	return nil
}

// detach closes the connection that was duplicated, which takes the socket off
// the runtime's poller and frees what that keeps for it.
func (e *end) detach() error {
	if e.borrowed {
		return nil
	}
	c := e.conn
	e.conn = nil
	return c.Close()
}

// release closes the socket. t.mu is held, or nobody else knows the tunnel.
func (e *end) release() (err error) {
	if e.conn != nil {
		err = e.conn.Close()
	}
	if !e.borrowed && e.fd >= 0 {
		closeDescriptor(e.fd)
	}
	return err
}

// abort stops a tunnel, from any goroutine: when it returns nothing is moved and
// nothing more is sent. The worker ends it when it is nudged. A tunnel that is
// silent has nothing to send, so its sockets can wait for their resets (settle) until
// those that are moving have been stopped: thousands cost the kernel long enough to
// be seen.
func (t *tunnel) abort(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.aborted != nil {
		return
	}
	t.aborted = err
	if t.worker == nil { // about to be refused
		t.reset()
		return
	}
	if !t.silent() {
		t.reset()
	}
	t.worker.bar(t)
}

// settle resets the upstream of an aborted tunnel that abort took for silent, lest it
// send any more, and the client where it may yet be given bytes that are queued for
// it. Another client is given none, and what it sends goes nowhere: its reset, which
// takes as long again, is the worker's, at the nudge that follows.
func (t *tunnel) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.aborted == nil || t.closed {
		return
	}
	t.ends[upstreamEnd].reset()
	if client := &t.ends[clientEnd]; !client.dead && unsent(client.fd) {
		client.reset()
	}
}

// silence is how long a tunnel must not have moved to count as silent.
const silence = 100 * time.Millisecond

// silent says that nothing has moved of late, and that neither side keeps the other
// waiting. t.mu is held.
func (t *tunnel) silent() bool {
	for i := range t.ways {
		if way := &t.ways[i]; way.pipe != nil || way.rest != nil {
			return false
		}
	}
	return time.Since(t.worker.start)-t.moved >= silence
}

// reset throws away what is queued on both sockets and resets them. t.mu is held.
func (t *tunnel) reset() {
	for i := range t.ends {
		t.ends[i].reset()
	}
}

// reset is the tunnel's for one socket. One that is closed already has nothing to
// reset, which is all that can fail.
func (e *end) reset() {
	if e.fd >= 0 && !e.dead {
		e.dead = true
		disconnect(e.fd)
	}
}

// refuse ends a tunnel that no worker has.
func (t *tunnel) refuse(err error) {
	t.mu.Lock()
	t.reset()
	t.closed = true
	err = errors.Join(err, t.ends[clientEnd].release(), t.ends[upstreamEnd].release())
	t.mu.Unlock()
	t.done(err)
}
