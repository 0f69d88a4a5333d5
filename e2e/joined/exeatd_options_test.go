//go:build linux

package joined

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/e2e/lab"
)

func TestStrictDestinationsRefuseWhatNoNameLedTo(t *testing.T) {
	s := start(t, "--allow", "pypi.test", "--strict-destinations")
	for _, address := range []string{"203.0.113.10:443", "203.0.113.10:80", "203.0.113.66:443", "[2001:db8::66]:80"} {
		s.refused(t, "tcp", address)
	}
	args := s.byName(t, "pypi.test")
	s.fetches(t, "https://pypi.test/", args...)
	s.fetches(t, "http://pypi.test/", args...)
	for _, address := range []string{"203.0.113.66:443", "[2001:db8::66]:80"} {
		s.refused(t, "tcp", address)
	}
	// An address that a name led to is read as ever.
	s.fetchesNot(t, "https://evil.test/", "--resolve", "evil.test:443:203.0.113.10")
	s.AwaitReady(t)
}

// secureResolver answers DNS over TLS as dns.test, for pypi.test alone.
type secureResolver struct {
	authority string // the file that a client must trust
	asked     atomic.Int64
}

func serveSecureDNS(t *testing.T, address string) *secureResolver {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"dns.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	r := &secureResolver{authority: filepath.Join(t.TempDir(), "authority.pem")}
	if err := os.WriteFile(r.authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{Listener: ln, Handler: r}
	started, ended := make(chan struct{}), make(chan error)
	server.NotifyStartedFunc = func() { close(started) }
	go func() { ended <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := errors.Join(server.Shutdown(), <-ended); err != nil {
			t.Error(err)
		}
	})
	return r
}

// ServeDNS implements dns.Handler.
func (r *secureResolver) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	r.asked.Add(1)
	answer := new(dns.Msg).SetReply(q)
	if q.Question[0].Qtype == dns.TypeA {
		rr, err := dns.NewRR(q.Question[0].Name + " 60 IN A 203.0.113.10")
		if err == nil {
			answer.Answer = append(answer.Answer, rr)
		}
	}
	if err := w.WriteMsg(answer); err != nil {
		return // it is gone
	}
}

func TestNamesAreAskedOverTLS(t *testing.T) {
	resolver := serveSecureDNS(t, "203.0.113.53:853")
	ask := func(t *testing.T, upstream string) *dns.Msg {
		s := prepare(t, noResolver, "--allow", "pypi.test", "--resolver", upstream)
		s.Env = append(s.Env, "SSL_CERT_FILE="+resolver.authority)
		s.Begin(t)
		s.AwaitReady(t)
		return s.resolve(t, "pypi.test", dns.TypeA, "198.51.100.1:53")
	}
	before := len(world.Asked())
	if a := ask(t, "tls://dns.test@203.0.113.53"); len(a.Answer) != 1 || resolver.asked.Load() == 0 {
		t.Errorf("answer %v after %d questions", a, resolver.asked.Load())
	}
	if a := ask(t, "tls://other.test@203.0.113.53"); a.Rcode != dns.RcodeServerFailure {
		t.Errorf("of a server with another's certificate: %v", a)
	}
	if asked := world.Asked()[before:]; len(asked) > 0 {
		t.Errorf("asked in clear: %v", asked)
	}
}

// TestALinkThatIsRenamed stays under the rules, and needs no lockdown where one
// hook has every link, or none is wanted (bypass.md B21).
func TestALinkThatIsRenamed(t *testing.T) {
	for name, flags := range map[string][]string{
		"with a hook for all links": nil,
		"without a hook":            {"--no-egress-hook", "--sandbox-net-raw=no"},
	} {
		t.Run(name, func(t *testing.T) {
			forbidden := serveUDP(t, "203.0.113.66:7")
			s := start(t, append(flags, "--allow", "203.0.113.7:7")...)
			n := strings.TrimPrefix(s.Far, "far")
			s.Sh(t, "ip link set eth0 down; ip link set eth0 name net0; ip link set net0 up; ip route add default via 100.64."+n+".1")
			lab.Eventually(t, "the way out", func() bool {
				conn, err := s.Dial("tcp", "203.0.113.7:7")
				return err == nil && conn.Close() == nil
			})
			s.echoes(t, "203.0.113.7:7")
			s.refused(t, "tcp", "203.0.113.66:22")
			s.refused(t, "udp", "203.0.113.66:7")
			s.AwaitReady(t)
			if forbidden.count() > 0 {
				t.Errorf("%d forbidden datagrams arrived", forbidden.count())
			}
		})
	}
}

// TestTheControlSocketIsSharedAsItsFlagsSay with one more user, or a group.
func TestTheControlSocketIsSharedAsItsFlagsSay(t *testing.T) {
	const uid, gid, stranger = 12345, 23456, 34567
	health := func(s *sidecar, uid, gid uint32) error {
		cmd := exec.Command(binary, "healthcheck", "--control", s.Socket)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	for name, c := range map[string]struct {
		flags    []string
		uid, gid uint32
		served   bool
		mode     os.FileMode
	}{
		"the user of --control-uid":                   {[]string{"--control-uid", "12345"}, uid, stranger, true, 0o660},
		"another user":                                {[]string{"--control-uid", "12345"}, stranger, stranger, false, 0o660},
		"one of the group of --control-gid":           {[]string{"--control-gid", "23456"}, stranger, gid, true, 0o660},
		"one of another group":                        {[]string{"--control-gid", "23456"}, stranger, stranger, false, 0o660},
		"neither, though both are said":               {[]string{"--control-uid", "12345", "--control-gid", "23456"}, stranger, stranger, false, 0o666},
		"uid 0, whoever else may":                     {[]string{"--control-uid", "12345"}, 0, 0, true, 0o660},
		"anybody but uid 0 where nobody else is said": {nil, stranger, stranger, false, 0o600},
	} {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, c.flags...)
			// Its directory lets everybody through: the socket itself must not.
			for dir := s.Dir; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			s.Begin(t)
			s.AwaitReady(t)
			info, err := os.Stat(s.Socket)
			if err != nil || info.Mode().Perm() != c.mode {
				t.Errorf("mode %v, %v; want %v", info.Mode().Perm(), err, c.mode)
			}
			if err := health(s, c.uid, c.gid); (err == nil) != c.served {
				t.Errorf("served %v, want %v: %v", err == nil, c.served, err)
			}
		})
	}
}
