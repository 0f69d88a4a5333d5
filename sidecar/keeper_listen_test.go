//go:build linux

package sidecar

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNobodyTakesAPortOfOurs is bypass B35, and B03: what listens for the sandbox
// shares its port with nobody, and does not speak multipath TCP.
func TestNobodyTakesAPortOfOurs(t *testing.T) {
	_, files, err := listen(loopbacks[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range files {
		defer h.file.Close()
		t.Run(string(h.role), func(t *testing.T) {
			if protocol := option(t, h.file, unix.SO_PROTOCOL); protocol == unix.IPPROTO_MPTCP {
				t.Error("it takes connections of multipath TCP")
			}
			for _, reuse := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
				if option(t, h.file, reuse) != 0 {
					t.Errorf("socket option %d is on: the port can be shared", reuse)
				}
			}
			if err := steal(h.file); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("binding its port with SO_REUSEADDR and SO_REUSEPORT: %v, want EADDRINUSE", err)
			}
		})
	}
}

func option(t *testing.T, f *os.File, name int) int {
	t.Helper()
	value, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, name)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// steal binds the address of a socket as a thief does.
func steal(f *os.File) error {
	name, err := unix.Getsockname(int(f.Fd()))
	if err != nil {
		return err
	}
	at, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return errors.New("no IPv4 address")
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var inner error
		err := c.Control(func(fd uintptr) {
			inner = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		})
		return errors.Join(err, inner)
	}}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port))
	kind, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return err
	}
	if kind == unix.SOCK_DGRAM {
		conn, err := config.ListenPacket(context.Background(), "udp", address)
		if err == nil {
			err = errors.Join(errors.New("it was bound"), conn.Close())
		}
		return err
	}
	ln, err := config.Listen(context.Background(), "tcp", address)
	if err == nil {
		err = errors.Join(errors.New("it was bound"), ln.Close())
	}
	return err
}
