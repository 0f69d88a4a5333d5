package firewall

import (
	"net/netip"
	"testing"
	"time"

	"github.com/exeat/exeat/policy"
)

func sealedInput(p *policy.Compiled) SealedInput {
	return SealedInput{
		Ports: SealedPorts{
			Transparent4: 40001, Transparent6: 40002, DNSUDP4: 40003, DNSUDP6: 40004, DNSTCP4: 40005, DNSTCP6: 40006,
		},
		Policy: p, LogGroup: 1,
	}
}

// TestSealedRuleset compares the ruleset with the text in testdata, and that
// with what nft lists once it is in force.
func TestSealedRuleset(t *testing.T) {
	if !namespace(t) {
		return
	}
	allow := `{"network_mode":"allowlist","allowed_hosts":["192.0.2.1","192.0.2.2:22","198.51.100.0/24:5432","[2001:db8::/64]:443","git.example.test:22"]}`
	cases := map[string]func() SealedInput{
		"sealed, before the first policy": func() SealedInput { return sealedInput(nil) },
		"sealed, an allowlist": func() SealedInput {
			in := sealedInput(compiled(t, allow))
			in.Attributed = []Attributed{
				{Addr: netip.MustParseAddr("203.0.113.9"), Opening: policy.Opening{Port: 22}, Timeout: time.Hour},
				{Addr: netip.MustParseAddr("2001:db8::9"), Opening: policy.Opening{}, Timeout: time.Hour},
			}
			return in
		},
		"sealed, a strict allowlist without IPv6 and without a log": func() SealedInput {
			in := sealedInput(compiled(t, allow))
			in.Strict, in.LogGroup = true, 0
			in.Ports.Transparent6, in.Ports.DNSUDP6, in.Ports.DNSTCP6 = 0, 0, 0
			return in
		},
		"sealed, public": func() SealedInput { return sealedInput(compiled(t, `"public"`)) },
	}
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for name, input := range cases {
		t.Run(name, func(t *testing.T) {
			r := SealedRuleset(input())
			golden(t, name, r.String())
			if err := k.Delete(SealedTable); err != nil {
				t.Fatal(err)
			}
			if err := k.Apply(r); err != nil {
				t.Fatal(err)
			}
			compareRuleset(t, sh(t, "nft list ruleset"), r.String())
		})
	}
}
