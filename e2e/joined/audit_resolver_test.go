//go:build linux

package joined

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// A sandbox that is there when its sidecar starts anew must not choose the
// resolver: it names the engine's DNS in the resolv.conf that they share, serves
// 127.0.0.11 itself, and asks a server of its own for whatever it is asked.
func TestASandboxDoesNotHaveUsDiscoverItsResolver(t *testing.T) {
	const accomplice = "203.0.113.66:53"
	s := prepare(t, noResolver, "--allow", "pypi.test", "--resolver-from-file", "--sandbox-net-raw=no")
	s.Flags = append(s.Flags, "--state", t.TempDir())
	file := s.withResolvConf(t, "nameserver 203.0.113.53\n")
	s.Begin(t)
	s.AwaitReady(t)
	s.stop(t)
	if err := os.WriteFile(file, []byte("nameserver 127.0.0.11\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var server net.PacketConn
	err := s.In(func() (err error) {
		server, err = net.ListenPacket("udp", "127.0.0.11:53")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- askElsewhere(s, server, accomplice) }()
	s.Begin(t)
	s.AwaitReady(t)
	if err := errors.Join(server.Close(), <-done); err != nil {
		t.Fatal(err)
	}
	status, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(status.Health); strings.Contains(got, accomplice) || !strings.Contains(got, "203.0.113.53:53") {
		t.Errorf("the resolver is the sandbox's choice: %s", got)
	}
}

// askElsewhere asks accomplice for every name that server is asked for.
func askElsewhere(s *sidecar, server net.PacketConn, accomplice string) error {
	buf := make([]byte, 4096)
	for {
		n, _, err := server.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		var q dns.Msg
		if err := q.Unpack(buf[:n]); err != nil {
			return err
		}
		conn, err := s.Dial("udp", accomplice)
		if err != nil {
			return err
		}
		_, err = conn.Write(buf[:n])
		if err = errors.Join(err, conn.Close()); err != nil {
			return err
		}
	}
}
