package dnsfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// pipelined is how many questions of one connection are worked on at once
	// (RFC 7766 section 6.2.1.1); the next is read when one is done.
	pipelined = 32
	// tcpWrite is how long a client may take to accept one answer.
	tcpWrite = 10 * time.Second
	// pause is how long a socket rests after an error that may pass.
	pause = 20 * time.Millisecond
)

// passing says whether an error on a listening socket is worth trying on after:
// an ICMP error of an earlier answer, descriptors or memory short, a client gone.
func passing(err error) bool {
	for _, errno := range [...]syscall.Errno{
		syscall.ECONNREFUSED, syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENETUNREACH,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR, syscall.EPERM, syscall.EACCES,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func rest(ctx context.Context) {
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// serveTCP accepts connections until ln is closed. slots bounds them over all
// listeners; one too many is closed at once.
func (s *Server) serveTCP(ctx context.Context, ln net.Listener, slots chan struct{}) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if !passing(err) {
				return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
			}
			rest(ctx)
			continue
		}
		select {
		case slots <- struct{}{}:
			conns.Go(func() {
				defer func() { <-slots }()
				s.serveConn(ctx, conn)
			})
		default:
			closeQuietly(conn)
		}
	}
}

// tcpConn answers on one connection.
type tcpConn struct {
	server  *Server
	conn    net.Conn
	waiting sync.WaitGroup
	places  chan struct{}
	write   sync.Mutex
}

// serveConn reads framed questions (RFC 1035 section 4.2.2) and answers them in
// the order in which their answers come (RFC 7766 section 7).
func (s *Server) serveConn(ctx context.Context, conn net.Conn) {
	defer closeQuietly(conn)
	stop := context.AfterFunc(ctx, func() { closeQuietly(conn) })
	defer stop()
	c := &tcpConn{server: s, conn: conn, places: make(chan struct{}, pipelined)}
	defer c.waiting.Wait()
	var buf [maxQuery]byte
	var q question
	for {
		msg, err := c.read(buf[:])
		if err != nil {
			return
		}
		if !c.receive(ctx, &q, msg) {
			return
		}
	}
}

// read gives the next message; the client has IdleTimeout for all of it.
func (c *tcpConn) read(buf []byte) ([]byte, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.server.cfg.IdleTimeout)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c.conn, buf[:2]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(buf))
	if n > len(buf) {
		return nil, errNotQuestion
	}
	_, err := io.ReadFull(c.conn, buf[:n])
	return buf[:n], err
}

// receive answers one message, or has it answered; false ends the connection.
func (c *tcpConn) receive(ctx context.Context, q *question, msg []byte) bool {
	s := c.server
	q.from = c.conn.RemoteAddr()
	err := q.parse(msg)
	if errors.Is(err, errNotQuestion) {
		return false
	}
	var bad *fault
	done := true
	r := s.guarded(q, func() (r reply) {
		if errors.As(err, &bad) {
			return s.malformed(q, bad)
		}
		r, done = s.answerNow(q, time.Now())
		return r
	})
	if done {
		return c.send(q, &r)
	}
	select {
	case c.places <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	later := q.clone()
	c.waiting.Go(func() {
		defer func() { <-c.places }()
		r := s.guarded(later, func() reply { return s.answerLater(ctx, later, clientOf(c.conn.RemoteAddr())) })
		if !c.send(later, &r) {
			closeQuietly(c.conn)
		}
	})
	return true
}

// send writes one framed answer in one piece.
func (c *tcpConn) send(q *question, r *reply) bool {
	frame := respond(make([]byte, 2, 2+minUDPSize), q, r, true)
	binary.BigEndian.PutUint16(frame, uint16(len(frame)-2))
	c.write.Lock()
	defer c.write.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(tcpWrite)); err != nil {
		return false
	}
	_, err := c.conn.Write(frame)
	return err == nil
}
