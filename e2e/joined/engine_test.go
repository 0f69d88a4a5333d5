//go:build linux

package joined

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

// engineDNS plays the DNS that Docker puts in the namespace of a user-defined
// network: it serves on a high port of 127.0.0.11, to which its own rules bring
// port 53, knows the containers by one label, and asks its upstream for the rest,
// from inside the namespace or (outside) from its own.
type engineDNS struct {
	ns      *lab.Namespace
	outside bool

	mu    sync.Mutex
	asked []string
}

const engineUpstream = "203.0.113.53:53"

// serveEngineDNS starts it.
func serveEngineDNS(t *testing.T, ns *lab.Namespace, outside bool) *engineDNS {
	t.Helper()
	nft := require.Tool(t, "nft")
	e := &engineDNS{ns: ns, outside: outside}
	ns.Sh(t, nft+` 'add table ip docker; add chain ip docker output { type nat hook output priority -100; };
add rule ip docker output ip daddr 127.0.0.11 tcp dport 53 dnat to 127.0.0.11:40053;
add rule ip docker output ip daddr 127.0.0.11 udp dport 53 dnat to 127.0.0.11:40053'`)
	var packets net.PacketConn
	var streams net.Listener
	err := ns.In(func() (err error) {
		if packets, err = net.ListenPacket("udp", "127.0.0.11:40053"); err == nil {
			streams, err = net.Listen("tcp", "127.0.0.11:40053")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: e}, {Listener: streams, Handler: e}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		work.Go(func() {
			if err := server.ActivateAndServe(); err != nil {
				t.Error(err)
			}
		})
		<-started
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
	return e
}

// ServeDNS implements dns.Handler.
func (e *engineDNS) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	name := q.Question[0].Name
	e.mu.Lock()
	e.asked = append(e.asked, name)
	e.mu.Unlock()
	answer := new(dns.Msg).SetReply(q)
	switch {
	case strings.EqualFold(name, "db.") && q.Question[0].Qtype == dns.TypeA:
		rr, err := dns.NewRR(name + " 600 IN A 203.0.113.7")
		if err == nil {
			answer.Answer = append(answer.Answer, rr)
		}
	case strings.Count(name, ".") == 1:
	default:
		if err := e.forward(q, answer); err != nil {
			answer.Rcode = dns.RcodeServerFailure
		}
	}
	if err := w.WriteMsg(answer); err != nil {
		return
	}
}

func (e *engineDNS) forward(q, into *dns.Msg) error {
	dial := func() (net.Conn, error) { return net.Dial("udp", engineUpstream) }
	if !e.outside {
		dial = func() (net.Conn, error) { return e.ns.Dial("udp", engineUpstream) }
	}
	conn, err := dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	r, _, err := (&dns.Client{Timeout: time.Second}).ExchangeWithConn(q.Copy(), &dns.Conn{Conn: conn})
	if err == nil {
		r.CopyTo(into)
	}
	return err
}

func (e *engineDNS) total() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.asked)
}

func (e *engineDNS) count(name string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, asked := range e.asked {
		if strings.EqualFold(asked, name) {
			n++
		}
	}
	return n
}

// withResolvConf makes exeatd see a resolv.conf of its own.
func (s *sidecar) withResolvConf(t *testing.T, content string) (file string) {
	t.Helper()
	file = filepath.Join(s.Dir, "resolv.conf")
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	s.Wrap = []string{require.Tool(t, "unshare"), "-m", "sh", "-ec", `mount --bind "$0" /etc/resolv.conf; exec "$@"`, file}
	return file
}

func TestTheEnginesResolverIsDiscovered(t *testing.T) {
	for _, c := range []struct {
		name    string
		outside bool
		ports   string // of the namespace, for whoever does not choose one
		flags   []string
	}{
		{"that asks from inside, and the sandbox has NET_RAW", false, "", []string{noResolver}},
		{"that asks from inside, and the sandbox has no NET_RAW", false, "", []string{noResolver, "--sandbox-net-raw=no"}},
		{"that asks from outside", true, "", []string{noResolver}},
		{"that asks from inside, and a resolver is named", false, "", nil},
		{"whose port has the number of a listener of ours", false, "40052 40057", []string{noResolver}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := prepare(t, append(c.flags, "--allow", "pypi.test", "--allow", "db:7")...)
			s.withResolvConf(t, "nameserver 127.0.0.11\noptions ndots:0\n")
			engine := serveEngineDNS(t, s.Namespace, c.outside)
			const ports = "/proc/sys/net/ipv4/ip_local_port_range"
			if c.ports != "" {
				s.Sh(t, "echo "+c.ports+" >"+ports)
			}
			s.Begin(t)
			s.AwaitReady(t)
			if c.ports != "" {
				s.Sh(t, "echo 32768 60999 >"+ports)
			}
			if a := s.resolve(t, "pypi.test", dns.TypeA, "127.0.0.11:53"); len(a.Answer) != 1 {
				t.Errorf("pypi.test: %v", a)
			}
			if n := engine.count("pypi.test."); (n > 0) != c.outside {
				t.Errorf("the engine was asked for pypi.test %d times", n)
			}
			if a := s.resolve(t, "db", dns.TypeA, "127.0.0.11:53"); len(a.Answer) != 1 {
				t.Errorf("db: %v", a)
			}
			s.echoes(t, "203.0.113.7:7")
			if a := s.resolve(t, "other", dns.TypeA, "127.0.0.11:53"); a.Rcode != dns.RcodeNameError {
				t.Errorf("other: %v", a)
			}
			if engine.count("other.") > 0 {
				t.Error("the engine was asked for a name that is denied")
			}
			// B16 and B48: neither the sandbox nor the engine for it gets out so.
			s.refused(t, "udp", "127.0.0.11:40053")
			s.refused(t, "tcp", "127.0.0.11:40053")
			if !c.outside {
				s.refused(t, "udp", engineUpstream)
			}
			status, err := s.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := "upstream 203.0.113.53:53"
			if c.outside {
				want = "upstream 127.0.0.11:53"
			}
			if got := fmt.Sprint(status.Health); !strings.Contains(got, want) {
				t.Errorf("health %s, want %s in it", got, want)
			}
		})
	}
}

func TestAFileThatTheSandboxWroteIsNotReadAgain(t *testing.T) {
	s := prepare(t, noResolver, "--allow", "pypi.test", "--resolver-from-file")
	s.Flags = append(s.Flags, "--state", t.TempDir())
	file := s.withResolvConf(t, "nameserver 203.0.113.53\n")
	s.Begin(t)
	s.AwaitReady(t)
	resolves := func() {
		t.Helper()
		a := s.resolve(t, "pypi.test", dns.TypeA, "198.51.100.1:53")
		if len(a.Answer) != 1 || !strings.Contains(a.Answer[0].String(), "203.0.113.10") {
			t.Errorf("pypi.test: %v", a)
		}
	}
	resolves()
	if err := os.WriteFile(file, []byte("nameserver 203.0.113.66\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.killWorker(t)
	resolves()
	s.stop(t)
	s.Begin(t)
	s.AwaitReady(t)
	resolves()
}
