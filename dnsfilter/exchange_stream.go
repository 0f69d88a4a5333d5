package dnsfilter

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// streamIdle is how long a connection to an upstream is kept for the next
	// question (RFC 7766 section 6.2.3, RFC 7858 section 3.4).
	streamIdle    = 10 * time.Second
	streamIdleTLS = 30 * time.Second
	// streamWrite bounds the writing of one question: a swap waits for it.
	streamWrite = 250 * time.Millisecond
)

// errStreamEnded says that the connection ended before the answer.
var errStreamEnded = errors.New("connection ended before the answer")

// streams holds the one connection, over TCP or TLS, that questions to an
// upstream share; it is opened when first needed and after it ended.
type streams struct {
	upstream *upstream
	tls      *tls.Config // nil for plain TCP
	dialing  chan struct{}

	mu      sync.Mutex
	current *stream
	closed  bool
}

func (s *streams) init(u *upstream) {
	s.upstream, s.dialing = u, make(chan struct{}, 1)
	if !u.TLS {
		return
	}
	name := u.ServerName
	if name == "" {
		name = u.Addr.Addr().WithZone("").String()
	}
	s.tls = &tls.Config{
		ServerName:         name,
		RootCAs:            u.server.cfg.RootCAs,
		MinVersion:         tls.VersionTLS12,
		ClientSessionCache: tls.NewLRUClientSessionCache(4),
	}
}

// exchange asks over the shared connection, and once more over a new one where
// the shared one turns out to have ended meanwhile.
func (s *streams) exchange(ctx context.Context, e *epoch, w *query) (*dns.Msg, error) {
	for {
		st, reused, err := s.get(ctx)
		if err != nil {
			return nil, err
		}
		m, err := st.ask(ctx, e, w)
		if reused && errors.Is(err, errStreamEnded) && ctx.Err() == nil {
			continue
		}
		return m, err
	}
}

// get gives the live connection or makes one; one caller dials, the others wait.
func (s *streams) get(ctx context.Context) (st *stream, reused bool, err error) {
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	s.mu.Lock()
	st, closed := s.current, s.closed
	s.mu.Unlock()
	if closed {
		return nil, false, net.ErrClosed
	}
	if st != nil && st.alive() {
		return st, true, nil
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, false, err
	}
	st = newStream(conn, s.tls != nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.upstream.server.spawn(st.read) {
		closeQuietly(conn)
		return nil, false, net.ErrClosed
	}
	s.current = st
	return st, false, nil
}

func (s *streams) dial(ctx context.Context) (net.Conn, error) {
	conn, err := s.upstream.server.cfg.Dial.DialContext(ctx, "tcp", s.upstream.Addr.String())
	if err != nil || s.tls == nil {
		return conn, err
	}
	secured := tls.Client(conn, s.tls)
	if err := secured.HandshakeContext(ctx); err != nil {
		closeQuietly(conn)
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secured, nil
}

func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.current != nil {
		closeQuietly(s.current.conn)
	}
}

// stream is one connection; answers come in any order and are told apart by id.
type stream struct {
	conn net.Conn
	idle time.Duration

	mu      sync.Mutex // over pending, ended and writing
	pending map[uint16]*waiter
	ended   bool
}

type waiter struct {
	query *query
	reply chan *dns.Msg // closed without one when the connection ends
}

func newStream(conn net.Conn, secured bool) *stream {
	st := &stream{conn: conn, idle: streamIdle, pending: make(map[uint16]*waiter)}
	if secured {
		st.idle = streamIdleTLS
	}
	return st
}

func (st *stream) alive() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.ended
}

// ask sends w and waits for its reply.
func (st *stream) ask(ctx context.Context, e *epoch, w *query) (*dns.Msg, error) {
	wait := &waiter{query: w, reply: make(chan *dns.Msg, 1)}
	if err := st.send(e, wait); err != nil {
		return nil, err
	}
	defer st.forget(wait)
	select {
	case m, ok := <-wait.reply:
		if !ok {
			return nil, errStreamEnded
		}
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (st *stream) send(e *epoch, wait *waiter) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		return errStreamEnded
	}
	w := wait.query
	for st.pending[w.id()] != nil { // an id that is on its way already: take the next
		binary.BigEndian.PutUint16(w.buf[:], w.id()+1)
	}
	now := time.Now()
	if err := errors.Join(st.conn.SetReadDeadline(now.Add(st.idle)), st.conn.SetWriteDeadline(now.Add(streamWrite))); err != nil {
		return fmt.Errorf("%w: %w", errStreamEnded, err)
	}
	frame := make([]byte, 0, 2+len(w.buf))
	frame = binary.BigEndian.AppendUint16(frame, uint16(w.n))
	if err := sendOne(e, st.conn, append(frame, w.bytes()...)); err != nil {
		if errors.Is(err, errSwapped) {
			return err
		}
		closeQuietly(st.conn) // half a frame may be out
		return fmt.Errorf("%w: %w", errStreamEnded, err)
	}
	st.pending[w.id()] = wait
	return nil
}

func (st *stream) forget(wait *waiter) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.pending[wait.query.id()] == wait {
		delete(st.pending, wait.query.id())
	}
}

// read hands out replies until the connection ends, then tells whoever waits.
func (st *stream) read() {
	defer func() {
		closeQuietly(st.conn)
		st.mu.Lock()
		defer st.mu.Unlock()
		st.ended = true
		for id, wait := range st.pending {
			close(wait.reply)
			delete(st.pending, id)
		}
	}()
	for {
		var length [2]byte
		if _, err := io.ReadFull(st.conn, length[:]); err != nil {
			return
		}
		msg := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(st.conn, msg); err != nil {
			return
		}
		if !st.deliver(msg) {
			return
		}
	}
}

// deliver gives a reply to whom it belongs; one that belongs to nobody is
// ignored. False ends the connection: what came cannot be parsed.
func (st *stream) deliver(msg []byte) bool {
	if len(msg) < headerLen {
		return false
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	wait := st.pending[binary.BigEndian.Uint16(msg)]
	if wait == nil || wait.query.match(msg) == matchNone {
		return true
	}
	var m dns.Msg
	if err := m.Unpack(msg); err != nil {
		return false
	}
	delete(st.pending, wait.query.id())
	wait.reply <- &m
	return true
}
