//go:build linux

package torture

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/lab"
)

// sidecar is an exeatd in a namespace of its own, and the sandbox beside it.
type sidecar struct{ *lab.Sidecar }

// prepare makes a sidecar that is not started yet.
func prepare(t testing.TB, flags ...string) *sidecar {
	t.Helper()
	return &sidecar{lab.Prepare(t, exeatd, append([]string{"--resolver", "203.0.113.53"}, flags...)...)}
}

// refused says that an address is refused to the sandbox.
func (s *sidecar) refused(t testing.TB, network, address string) {
	t.Helper()
	conn, err := s.Dial(network, address)
	if err == nil && network == "udp" {
		_, err = conn.Write([]byte("hello"))
	}
	if conn != nil {
		conn.Close()
	}
	if !lab.Refused(err) {
		t.Errorf("%s %s: %v, want it refused", network, address, err)
	}
}

// packetInfo makes a socket tell which address was asked.
func packetInfo(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) })
	return errors.Join(err, inner)
}
