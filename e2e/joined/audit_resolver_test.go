//go:build linux

package joined

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/e2e/require"
)

// accomplice is a server of the sandbox's choice.
const accomplice = "203.0.113.66:53"

// A sandbox that is there when its sidecar starts anew must not choose the
// resolver: it names the engine's DNS in the resolv.conf that they share, serves
// 127.0.0.11 itself, and asks a server of its own for whatever it is asked.
func TestASandboxDoesNotHaveUsDiscoverItsResolver(t *testing.T) {
	for _, c := range []struct {
		name    string
		flags   []string
		state   bool
		between string // what happens to the namespace meanwhile
		want    string // among the parts of health; "" is no upstream at all
		warning string
	}{
		{name: "with a state directory", flags: []string{noResolver, "--resolver-from-file"}, state: true, want: "203.0.113.53:53"},
		{name: "without one", flags: []string{noResolver}, warning: "no resolver is known"},
		{name: "with a resolver that is named, beside which single labels would be asked of it", want: "203.0.113.53:53"},
		{
			name: "with rules of a version that kept nothing", flags: []string{noResolver},
			between: "delete table inet exeat_kept", warning: "guarded before",
		},
		{
			name: "with a state directory that is new", flags: []string{noResolver, "--resolver-from-file"}, state: true,
			between: "delete table inet exeat_kept", warning: "guarded before",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := prepare(t, append(c.flags, "--allow", "pypi.test", "--allow", "db", "--sandbox-net-raw=no")...)
			if c.state {
				s.Flags = append(s.Flags, "--state", t.TempDir())
			}
			file := s.withResolvConf(t, "nameserver 203.0.113.53\n")
			s.Begin(t)
			s.AwaitReady(t)
			s.stop(t)
			if c.between != "" {
				s.Sh(t, require.Tool(t, "nft")+" "+c.between)
				if c.state {
					s.Flags = append(s.Flags, "--state", t.TempDir()) // the last one stands
				}
			}
			if err := os.WriteFile(file, []byte("nameserver 127.0.0.11\nnameserver "+strings.TrimSuffix(accomplice, ":53")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			asked := s.serveAsEngine(t)
			s.Begin(t)
			s.AwaitReady(t)
			if c.want != "" {
				s.resolve(t, "db", dns.TypeA, "127.0.0.11:53")
			}
			status, err := s.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(status.Health)
			if strings.Contains(got, accomplice) || strings.Contains(got, "upstream 127.0.0.11") || !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "upstream") {
				t.Errorf("the resolver is the sandbox's choice: %s", got)
			}
			if n := asked(); n > 0 {
				t.Errorf("the sandbox was asked %d times", n)
			}
			if !strings.Contains(s.Stderr.String(), c.warning) {
				t.Errorf("nothing was said of %q:\n%s", c.warning, s.Stderr.String())
			}
		})
	}
}

// Where the engine's DNS is there, a restart goes by what the first start found:
// a sandbox with NET_RAW would see the name that is asked for, and ask for it first.
func TestTheEnginesResolverIsDiscoveredOnce(t *testing.T) {
	s := prepare(t, noResolver, "--allow", "pypi.test", "--allow", "db:7")
	s.withResolvConf(t, "nameserver 127.0.0.11\noptions ndots:0\n")
	engine := serveEngineDNS(t, s.Namespace, false)
	s.Begin(t)
	s.AwaitReady(t)
	s.stop(t)
	before := engine.total()
	s.Begin(t)
	s.AwaitReady(t)
	if n := engine.total() - before; n > 0 {
		t.Errorf("the engine was asked %d times for a resolver that is known", n)
	}
	for _, name := range []string{"pypi.test", "db"} {
		if a := s.resolve(t, name, dns.TypeA, "127.0.0.11:53"); len(a.Answer) != 1 {
			t.Errorf("%s: %v", name, a)
		}
	}
	s.refused(t, "udp", engineUpstream)
}

// serveAsEngine has the sandbox serve 127.0.0.11:53; asked says how often it
// was asked.
func (s *sidecar) serveAsEngine(t *testing.T) (asked func() int64) {
	t.Helper()
	var server net.PacketConn
	err := s.In(func() (err error) {
		server, err = net.ListenPacket("udp", "127.0.0.11:53")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	done := make(chan error, 1)
	go func() { done <- askElsewhere(s, server, &n) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-done); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return n.Load
}

// askElsewhere asks accomplice for every name that server is asked for, and counts.
func askElsewhere(s *sidecar, server net.PacketConn, asked *atomic.Int64) error {
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
		asked.Add(1)
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
