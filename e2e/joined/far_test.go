//go:build linux

package joined

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// udpEcho answers UDP at an address of the little internet, and counts what
// arrives there.
type udpEcho struct {
	conn net.PacketConn
	mu   sync.Mutex
	got  []string
}

func serveUDP(t testing.TB, address string) *udpEcho {
	t.Helper()
	// A local route alone does not let IPv6 bind (ip(7)).
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var inner error
		err := c.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(err, os.NewSyscallError("setsockopt", inner))
	}}
	conn, err := config.ListenPacket(context.Background(), "udp", address)
	if err != nil {
		t.Fatal(err)
	}
	e := &udpEcho{conn: conn}
	var work sync.WaitGroup
	work.Go(e.run)
	t.Cleanup(func() { conn.Close(); work.Wait() })
	return e
}

func (e *udpEcho) run() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := e.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		e.mu.Lock()
		e.got = append(e.got, string(buf[:n]))
		e.mu.Unlock()
		if _, err := e.conn.WriteTo(buf[:n], from); err != nil {
			return
		}
	}
}

func (e *udpEcho) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.got)
}

// answersUDP says that a datagram comes back.
func (s *sidecar) answersUDP(t testing.TB, address string) {
	t.Helper()
	conn, err := s.Dial("udp", address)
	if err == nil {
		defer conn.Close()
		err = exchange(conn)
	}
	if err != nil {
		t.Errorf("udp %s: %v", address, err)
	}
}

// listen serves an echo in the sandbox.
func (s *sidecar) listen(t testing.TB, port string) error {
	return s.In(func() error {
		ln, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					if _, err := io.Copy(conn, conn); err != nil {
						return
					}
				}()
			}
		}()
		return nil
	})
}

// fromOutside connects from the little internet, and wants an echo.
func fromOutside(address string) error {
	conn, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
	if err != nil {
		return err
	}
	defer conn.Close()
	return exchange(conn)
}
