package policy

import (
	"net/netip"
	"testing"
)

func TestADeniedIPv4AddressIsDeniedInEveryForm(t *testing.T) {
	c := Compile(mustParse(t, `{"network_mode":"denylist","denied_hosts":["203.0.113.64/26:443"]}`), Options{})
	for form, addr := range map[string]string{
		"itself":                     "203.0.113.66",
		"NAT64, well-known":          "64:ff9b::cb00:7142",
		"NAT64, local":               "64:ff9b:1::cb00:7142",
		"NAT64, local, of /48":       "64:ff9b:1:cb00:71:4200::",
		"NAT64, local, of /56":       "64:ff9b:1:abcb:0:7142::",
		"NAT64, local, of /64":       "64:ff9b:1:1:cb:71:4200:0",
		"6to4":                       "2002:cb00:7142::1",
		"Teredo, the client":         "2001:0:c000:201::34ff:8ebd",
		"IPv4-compatible":            "::cb00:7142",
		"ISATAP":                     "2001:db8::5efe:cb00:7142",
		"ISATAP, a global interface": "2001:db8::200:5efe:cb00:7142",
	} {
		t.Run(form, func(t *testing.T) {
			r := Request{Kind: KindPacket, Addr: netip.MustParseAddr(addr), Port: 443}
			if d := c.Decide(r); d.Verdict != Deny || d.Reason != ReasonDenied || d.Rule != "203.0.113.64/26:443" {
				t.Errorf("decision %+v, want deny denied by 203.0.113.64/26:443", d)
			}
			r.Port = 80
			if d := c.Decide(r); d.Verdict != Allow {
				t.Errorf("port 80: %+v, want allow: the target has a port", d)
			}
		})
	}
	if d := c.Decide(Request{Kind: KindPacket, Addr: netip.MustParseAddr("64:ff9b::cb00:7101"), Port: 443}); d.Verdict != Allow {
		t.Errorf("another address in the same form: %+v, want allow", d)
	}
}

func TestTheKernelsSetsHoldADeniedIPv4AddressAsNAT64And6to4(t *testing.T) {
	c := Compile(mustParse(t, `{"network_mode":"allowlist","denied_hosts":["203.0.113.64/26:443"]}`), Options{Floor: []Target{
		{Prefix: netip.MustParsePrefix("169.254.169.254/32")},
	}})
	held := map[string]bool{}
	for _, r := range c.DeniedAddresses() {
		held[r.Prefix.String()] = true
	}
	for _, want := range []string{
		"203.0.113.64/26", "64:ff9b::cb00:7140/122", "2002:cb00:7140::/42",
		"169.254.169.254/32", "64:ff9b::a9fe:a9fe/128", "2002:a9fe:a9fe::/48",
	} {
		if !held[want] {
			t.Errorf("no %s among %v", want, held)
		}
	}
}
