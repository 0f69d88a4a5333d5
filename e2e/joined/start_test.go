//go:build linux

package joined

import (
	"testing"

	"github.com/miekg/dns"
)

func TestAnAllowlistIsEnforcedOnceItIsReady(t *testing.T) {
	s := start(t, "--allow", "pypi.test", "--allow", "203.0.113.7:7")
	status, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", status)
	s.echoes(t, "203.0.113.7:7")
	s.refused(t, "tcp", "203.0.113.66:22")
	s.refused(t, "tcp", "[2001:db8::66]:22")
	s.refused(t, "udp", "203.0.113.66:443")
	s.refused(t, "udp", "[2001:db8::66]:443")
	if a := s.resolve(t, "pypi.test", dns.TypeA, "198.51.100.1:53"); len(a.Answer) != 1 {
		t.Errorf("answer %v", a)
	}
	if a := s.resolve(t, "evil.test", dns.TypeA, "198.51.100.1:53"); a.Rcode != dns.RcodeNameError {
		t.Errorf("answer %v", a)
	}
}
