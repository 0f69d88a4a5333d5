package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/exeat/exeat/policy"
)

const (
	// udpBatch is how many datagrams one system call moves at most.
	udpBatch = 32
	// maxQuery bounds a message: a question is at most 259 bytes with its header,
	// and options are not used. A datagram that fills the buffer may have been cut.
	maxQuery = 2048
)

// batcher moves datagrams many at a time (recvmmsg(2), sendmmsg(2)).
// ipv4.PacketConn and ipv6.PacketConn are it; their Message is one type.
type batcher interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// newPlainBatcher is for any connection.
func newPlainBatcher(conn net.PacketConn) batcher {
	if addr, ok := conn.LocalAddr().(*net.UDPAddr); ok && addr.IP.To4() == nil {
		return ipv6.NewPacketConn(conn)
	}
	return ipv4.NewPacketConn(conn)
}

// udpServer answers on one socket. What can be answered at once is, in the reading
// goroutine; each question that must wait has its own.
type udpServer struct {
	server  *Server
	conn    net.PacketConn
	batch   batcher
	waiting sync.WaitGroup
	jobs    chan *job
	free    sync.Pool    // of *job
	idle    atomic.Int32 // workers that wait for a job
	in, out []ipv4.Message
	ready   int // of out
	q       question
}

// serveUDP answers on conn until it is closed.
func (s *Server) serveUDP(ctx context.Context, conn net.PacketConn) error {
	u := &udpServer{server: s, conn: conn, batch: newBatcher(conn), jobs: make(chan *job)}
	u.in, u.out = make([]ipv4.Message, udpBatch), make([]ipv4.Message, udpBatch)
	for i := range u.in {
		u.in[i].Buffers = [][]byte{make([]byte, maxQuery)}
		u.out[i].Buffers = [][]byte{make([]byte, 0, maxUDPSize)}
	}
	defer u.waiting.Wait()
	for {
		n, err := u.batch.ReadBatch(u.in, 0)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if passing(err) {
				rest(ctx)
				continue
			}
			return fmt.Errorf("read questions on %s: %w", conn.LocalAddr(), err)
		}
		now := time.Now()
		for i := range n {
			u.receive(ctx, &u.in[i], now)
		}
		u.flush()
	}
}

// receive takes one datagram.
func (u *udpServer) receive(ctx context.Context, m *ipv4.Message, now time.Time) {
	s, q := u.server, &u.q
	msg := m.Buffers[0][:m.N]
	q.from = m.Addr
	err := q.parse(msg)
	if errors.Is(err, errNotQuestion) {
		return
	}
	var bad *fault
	done := true
	r := s.guarded(q, func() (r reply) {
		if errors.As(err, &bad) {
			return s.malformed(q, bad)
		}
		r, done = s.answerNow(q, now)
		return r
	})
	if done {
		out := &u.out[u.ready]
		out.Addr = m.Addr
		out.Buffers[0] = respond(out.Buffers[0][:0], q, &r, false)
		u.ready++
		return
	}
	waits, ok := u.free.Get().(*job)
	if !ok {
		waits = new(job)
	}
	q.copyTo(&waits.question)
	waits.question.from = kept(m.Addr)
	u.later(ctx, waits)
}

// job is a question that waits, and room for its answer. Both are used again once
// it is answered.
type job struct {
	question question
	answer   []byte
}

// idleWorkers is how many goroutines are kept for the next question that waits:
// their stacks have grown to what one needs.
const idleWorkers = 32

// later gives j to an idle worker or a new one.
func (u *udpServer) later(ctx context.Context, j *job) {
	select {
	case u.jobs <- j:
	default:
		u.waiting.Go(func() { u.work(ctx, j) })
	}
}

func (u *udpServer) work(ctx context.Context, j *job) {
	for {
		u.answerLater(ctx, j)
		u.free.Put(j)
		if u.idle.Add(1) > idleWorkers {
			u.idle.Add(-1)
			return
		}
		select {
		case j = <-u.jobs:
			u.idle.Add(-1)
		case <-ctx.Done():
			return
		}
	}
}

func (u *udpServer) answerLater(ctx context.Context, j *job) {
	q := &j.question
	r := u.server.guarded(q, func() reply { return u.server.answerLater(ctx, q, clientOf(q.from)) })
	j.answer = respond(j.answer[:0], q, &r, false)
	if err := answerTo(u.conn, j.answer, q.from); err != nil {
		return // the client is gone, or the socket: either way nobody waits
	}
}

// flush sends what is ready. A datagram that cannot be sent is skipped, as a lost
// one is: the client asks again.
func (u *udpServer) flush() {
	for sent := 0; sent < u.ready; {
		n, err := u.batch.WriteBatch(u.out[sent:u.ready], 0)
		if err != nil {
			n = max(n, 0) + 1
		}
		sent += n
	}
	u.ready = 0
}

// clone copies q with its bytes, so that it outlives the message.
func (q *question) clone() *question {
	c := new(question)
	q.copyTo(c)
	return c
}

// copyTo is clone into c, a clone that nobody needs any more, or the zero question.
func (q *question) copyTo(c *question) {
	wire := append(c.wire[:0], q.wire...)
	*c = *q
	c.wire, c.lower = wire, append(c.buf[:0], q.lower...)
}

// clientOf is the address that limits are kept for.
func clientOf(addr net.Addr) netip.Addr { return clientAt(addr).Addr() }

// clientAt is a client's address and port.
func clientAt(addr net.Addr) netip.AddrPort {
	var at netip.AddrPort
	switch addr := addr.(type) {
	case interface{ addrPort() netip.AddrPort }:
		at = addr.addrPort()
	case *net.UDPAddr:
		at = addr.AddrPort()
	case *net.TCPAddr:
		at = addr.AddrPort()
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// protocolOf is what a client asks by.
func protocolOf(addr net.Addr) policy.Protocol {
	if _, stream := addr.(*net.TCPAddr); stream {
		return policy.TCP
	}
	return policy.UDP
}
