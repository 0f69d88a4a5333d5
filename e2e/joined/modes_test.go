//go:build linux

package joined

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

// pings says whether an echo comes back; where not, that ping was told at once.
func (s *sidecar) pings(t *testing.T, address string, want bool) {
	t.Helper()
	ping := require.Tool(t, "ping")
	var out []byte
	err := s.In(func() (err error) {
		out, err = exec.Command(ping, "-c1", "-W2", "-n", address).CombinedOutput()
		return err
	})
	switch {
	case want && err != nil:
		t.Errorf("ping %s: %v\n%s", address, err, out)
	case !want && err == nil:
		t.Errorf("ping %s: answered, want it refused", address)
	case !want && !bytes.Contains(out, []byte("iltered")) && !bytes.Contains(out, []byte("rohibited")):
		t.Errorf("ping %s: not refused with a word\n%s", address, out)
	}
}

func (s *sidecar) fetches(t *testing.T, url string, args ...string) {
	t.Helper()
	if out, ok := s.curl(t, append(args, url)...); !ok {
		t.Errorf("%s: %s", url, out)
	}
}

func (s *sidecar) fetchesNot(t *testing.T, url string, args ...string) {
	t.Helper()
	began := time.Now()
	if out, ok := s.curl(t, append([]string{"--fail"}, append(args, url)...)...); ok {
		t.Errorf("%s: fetched %q, want it denied", url, out)
	}
	if took := time.Since(began); took > 10*time.Second { // curl ends by itself in twenty
		t.Errorf("%s: denied after %s", url, took)
	}
}

// byName makes curl ask our resolver, though the machine's file names another.
func (s *sidecar) byName(t *testing.T, name string) []string {
	t.Helper()
	var args []string
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		for _, rr := range s.resolve(t, name, qtype, "198.51.100.1:53").Answer {
			addr := ""
			switch rr := rr.(type) {
			case *dns.A:
				addr = rr.A.String()
			case *dns.AAAA:
				addr = "[" + rr.AAAA.String() + "]"
			}
			for _, port := range []string{"80", "443", "8443"} {
				args = append(args, "--resolve", name+":"+port+":"+addr)
			}
		}
	}
	return args
}

func TestAnAllowlistByNameAndAddressOverEveryProtocolAndBothFamilies(t *testing.T) {
	listed, other := serveUDP(t, "203.0.113.7:7"), serveUDP(t, "203.0.113.66:7")
	serveUDP(t, "[2001:db8::7]:7")
	s := start(t, "--allow", "pypi.test", "--allow", "203.0.113.7", "--allow", "[2001:db8::7]")
	s.echoes(t, "203.0.113.7:7")
	s.echoes(t, "[2001:db8::7]:7")
	s.answersUDP(t, "203.0.113.7:7")
	s.answersUDP(t, "[2001:db8::7]:7")
	s.pings(t, "203.0.113.7", true)
	s.pings(t, "2001:db8::7", true)
	s.fetches(t, "https://pypi.test/", s.byName(t, "pypi.test")...)
	s.fetches(t, "http://pypi.test/", s.byName(t, "pypi.test")...)

	s.refused(t, "tcp", "203.0.113.66:22")
	s.refused(t, "tcp", "[2001:db8::66]:22")
	s.refused(t, "udp", "203.0.113.66:7")
	s.refused(t, "udp", "[2001:db8::66]:7")
	s.pings(t, "203.0.113.66", false)
	s.pings(t, "2001:db8::66", false)
	s.fetchesNot(t, "https://evil.test/", "--resolve", "evil.test:443:203.0.113.66")
	s.fetchesNot(t, "http://evil.test/", "--resolve", "evil.test:80:[2001:db8::66]")
	if a := s.resolve(t, "evil.test", dns.TypeA, "[2001:db8::1]:53"); a.Rcode != dns.RcodeNameError {
		t.Errorf("evil.test: %v", a)
	}
	if listed.count() != 1 || other.count() != 0 {
		t.Errorf("UDP arrived %d times at the listed address and %d times at the other, want 1 and 0", listed.count(), other.count())
	}
}

func TestPublicGoesStraightOutAndAFloorHolds(t *testing.T) {
	serveUDP(t, "203.0.113.66:7")
	s := start(t, "--mode", "public", "--floor", "203.0.113.7")
	s.echoes(t, "203.0.113.66:7")
	s.echoes(t, "[2001:db8::66]:7")
	s.answersUDP(t, "203.0.113.66:7")
	s.pings(t, "203.0.113.66", true)
	s.fetches(t, "https://evil.test/", s.byName(t, "evil.test")...)
	s.refused(t, "tcp", "203.0.113.7:7")
	s.refused(t, "udp", "203.0.113.7:7")
	s.pings(t, "203.0.113.7", false)
}

func TestNoNetworkRefusesEverything(t *testing.T) {
	s := start(t)
	s.refused(t, "tcp", "203.0.113.7:7")
	s.refused(t, "tcp", "[2001:db8::7]:7")
	s.refused(t, "udp", "203.0.113.7:7")
	s.pings(t, "203.0.113.7", false)
	s.fetchesNot(t, "https://pypi.test/", "--resolve", "pypi.test:443:203.0.113.10")
	if a := s.resolve(t, "pypi.test", dns.TypeA, "198.51.100.1:53"); a.Rcode != dns.RcodeNameError {
		t.Errorf("pypi.test: %v", a)
	}
}

func TestADenylistDeniesByNameAndAddress(t *testing.T) {
	s := start(t, "--deny", "evil.test", "--deny", "203.0.113.7")
	s.fetches(t, "https://pypi.test/", s.byName(t, "pypi.test")...)
	s.fetchesNot(t, "https://evil.test/", "--resolve", "evil.test:443:203.0.113.66")
	s.refused(t, "tcp", "203.0.113.7:7")
	s.refused(t, "udp", "203.0.113.7:7")
	s.echoes(t, "203.0.113.8:7")
}

func TestTheLogNamesWhatTheKernelDecided(t *testing.T) {
	s := start(t, "--allow", "pypi.test:443", "--allow", "203.0.113.7:7")
	s.refused(t, "tcp", "203.0.113.66:22")
	s.echoes(t, "203.0.113.7:7")
	s.resolve(t, "pypi.test", dns.TypeA, "198.51.100.1:53")
	s.refused(t, "tcp", "203.0.113.10:22")
	for _, want := range []string{
		`"verdict":"deny","reason":"unlisted","generation":1,"channel":"packet","addr":"203.0.113.66","port":22`,
		`"verdict":"allow","reason":"rule","rule":"203.0.113.7:7","generation":1,"channel":"packet","addr":"203.0.113.7","port":7`,
		`"name":"pypi.test","addr":"203.0.113.10","port":22`,
	} {
		lab.Eventually(t, want, func() bool { return strings.Contains(s.Stdout.String(), want) })
	}
	if strings.Contains(s.Stdout.String(), "192.0.2.254") || strings.Contains(s.Stdout.String(), "probe.exeat") {
		t.Errorf("our own probes are in the log")
	}
}
