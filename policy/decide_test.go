package policy

import (
	"net/netip"
	"slices"
	"testing"
)

// Every reason that needs no live traffic, and the order of the eleven steps.
func TestDecide(t *testing.T) {
	addr := netip.MustParseAddr
	allow := `{"network_mode": "allowlist", "allowed_hosts": ["a.test:443", "*.wild.test", "203.0.113.0/28:443", {"host": "t.test", "port": 123, "protocol": "udp"}, {"host": "198.51.100.1", "protocol": "tcp"}]}`
	carved := `{"network_mode": "allowlist", "allowed_hosts": ["*.test", "203.0.113.0/24", {"host": "q.example", "port": 443, "protocol": "udp"}], "denied_hosts": ["bad.test", {"host": "web.test", "port": 80}, "203.0.113.66", {"host": "u.test", "protocol": "udp"}]}`
	deny := `{"network_mode": "denylist", "denied_hosts": ["bad.test", "203.0.113.66:25"]}`
	floor := []string{"floor.test", "203.0.113.99", "*.low.test:8080"}
	dns := func(name string, qtype uint16) Request {
		return Request{Kind: KindQuestion, Name: name, QType: qtype}
	}
	for _, c := range []struct {
		about    string
		document string
		request  Request
		verdict  Verdict
		reason   Reason
		rule     string
	}{
		{"1: the floor holds in public", `"public"`, Request{Name: "floor.test", Port: 443}, Deny, ReasonDenied, "floor:floor.test"},
		{"1: and in no-network its reason comes first", `"no-network"`, Request{Name: "floor.test", Port: 443}, Deny, ReasonDenied, "floor:floor.test"},
		{"1: the floor outranks a target that allows", `{"network_mode": "allowlist", "allowed_hosts": ["203.0.113.99"]}`, Request{Addr: addr("203.0.113.99"), Port: 1}, Deny, ReasonDenied, "floor:203.0.113.99"},
		{"1: a floor target with a port leaves the others", `"public"`, Request{Name: "x.low.test", Port: 443}, Allow, ReasonMode, ""},
		{"1: a carve-out", carved, Request{Name: "bad.test", Port: 443}, Deny, ReasonDenied, "bad.test"},
		{"1: a carve-out of a port", carved, Request{Name: "web.test", Port: 80}, Deny, ReasonDenied, "web.test:80"},
		{"1: and its other ports", carved, Request{Name: "web.test", Port: 443}, Allow, ReasonRule, "*.test"},
		{"1: a connection is denied when its address is", carved, Request{Kind: KindConnection, Name: "good.test", Addr: addr("203.0.113.66"), Port: 443}, Deny, ReasonDenied, "203.0.113.66"},
		{"1: a connection is denied when its name is, on an allowed address", carved, Request{Kind: KindConnection, Name: "bad.test", Addr: addr("203.0.113.1"), Port: 443}, Deny, ReasonDenied, "bad.test"},
		{"1: a denied address covers ICMP", carved, Request{Kind: KindPacket, Addr: addr("203.0.113.66"), Protocol: ICMP}, Deny, ReasonDenied, "203.0.113.66"},
		{"1: a denied name that is an address by its spelling", carved, Request{Kind: KindConnection, Name: "203.0.113.66", Addr: addr("203.0.113.1"), Port: 80}, Deny, ReasonDenied, "203.0.113.66"},
		{"1: a mapped address is the IPv4 one", carved, Request{Addr: addr("::ffff:203.0.113.66"), Port: 443}, Deny, ReasonDenied, "203.0.113.66"},
		{"1: a dot does not dodge a denial", carved, Request{Name: "bad.test.", Port: 443}, Deny, ReasonDenied, "bad.test"},
		{"2: no-network", `"no-network"`, Request{Addr: addr("203.0.113.1"), Port: 443}, Deny, ReasonMode, ""},
		{"2: QUIC while the floor holds a name", `"public"`, Request{Kind: KindPacket, Addr: addr("203.0.113.1"), Port: 443, Protocol: UDP}, Deny, ReasonProtocol, ""},
		{"2: QUIC to an address target", carved, Request{Kind: KindPacket, Addr: addr("203.0.113.1"), Port: 443, Protocol: UDP}, Allow, ReasonRule, "203.0.113.0/24"},
		{"2: QUIC that a name target opens", carved, Request{Name: "q.example", Port: 443, Protocol: UDP}, Deny, ReasonProtocol, ""},
		{"2: an address of denied names only", deny, Request{Kind: KindPacket, Addr: addr("198.51.100.7"), Port: 22, Attributed: []string{"bad.test"}}, Deny, ReasonDenied, "bad.test"},
		{"2: an address of a denied name and another", deny, Request{Kind: KindPacket, Addr: addr("198.51.100.7"), Port: 22, Attributed: []string{"bad.test", "good.test"}}, Allow, ReasonMode, ""},
		{"2: public", `"public"`, Request{Kind: KindConnection, Addr: addr("169.254.169.254"), Port: 80}, Allow, ReasonMode, ""},
		{"3: an address target, whatever name is shown", allow, Request{Kind: KindConnection, Name: "other.test", Addr: addr("203.0.113.1"), Port: 443}, Allow, ReasonRule, "203.0.113.0/28:443"},
		{"3: and whatever was sent", allow, Request{Kind: KindConnection, Addr: addr("203.0.113.1"), Port: 443, Finding: FindingMalformed}, Allow, ReasonRule, "203.0.113.0/28:443"},
		{"3: a whole family opens names of its protocol", `{"network_mode": "allowlist", "allowed_hosts": ["[::/0]:443"]}`, Request{Name: "x.test", Port: 443}, Allow, ReasonRule, "[::/0]:443"},
		{"4: malformed", allow, Request{Kind: KindConnection, Addr: addr("192.0.2.1"), Port: 443, Finding: FindingMalformed}, Deny, ReasonMalformed, ""},
		{"4: nothing sent in time", allow, Request{Kind: KindConnection, Addr: addr("192.0.2.1"), Port: 443, Finding: FindingTimeout, Attributed: []string{"a.test"}}, Deny, ReasonLimit, ""},
		{"5: parts disagree", allow, Request{Kind: KindConnection, Name: "a.test", Port: 443, Finding: FindingMismatch}, Deny, ReasonNameMismatch, ""},
		{"5: a Host that is another address than the destination", allow, Request{Kind: KindConnection, Name: "203.0.113.1", Addr: addr("192.0.2.1"), Port: 443}, Deny, ReasonNameMismatch, ""},
		{"6: TLS without a server name", allow, Request{Kind: KindConnection, Addr: addr("192.0.2.1"), Port: 443, Finding: FindingNoServerName, Attributed: []string{"a.test"}}, Deny, ReasonNoServerName, ""},
		{"6: in a denylist too", deny, Request{Kind: KindConnection, Addr: addr("192.0.2.1"), Port: 443, Finding: FindingNoServerName}, Deny, ReasonNoServerName, ""},
		{"6: an ECH outer name that is unlisted", allow, Request{Kind: KindConnection, Name: "outer.test", Addr: addr("192.0.2.1"), Port: 443, Finding: FindingECH}, Deny, ReasonECH, ""},
		{"6: a GREASE extension beside an allowed name", allow, Request{Kind: KindConnection, Name: "a.test", Addr: addr("192.0.2.1"), Port: 443, Finding: FindingECH}, Allow, ReasonRule, "a.test:443"},
		{"6: an ECH outer name that is attributed is judged as it is", allow, Request{Kind: KindConnection, Name: "outer.test", Addr: addr("192.0.2.1"), Port: 443, Finding: FindingECH, Attributed: []string{"outer.test"}}, Deny, ReasonUnlisted, ""},
		{"6: an ECH outer name that is denied", carved, Request{Kind: KindConnection, Name: "bad.test", Addr: addr("192.0.2.1"), Port: 443, Finding: FindingECH}, Deny, ReasonDenied, "bad.test"},
		{"6: ECH in a denylist", deny, Request{Kind: KindConnection, Name: "outer.test", Addr: addr("192.0.2.1"), Port: 443, Finding: FindingECH}, Allow, ReasonMode, ""},
		{"7: a denylist denies metadata", deny, Request{Kind: KindPacket, Addr: addr("169.254.169.254"), Port: 80}, Deny, ReasonSpecialAddress, ""},
		{"7: and embedded metadata", deny, Request{Kind: KindPacket, Addr: addr("64:ff9b::a9fe:a9fe"), Port: 80}, Deny, ReasonSpecialAddress, ""},
		{"7: and metadata as a name", deny, Request{Name: "169.254.169.254", Port: 80}, Deny, ReasonSpecialAddress, ""},
		{"7: and allows the rest", deny, Request{Kind: KindPacket, Addr: addr("203.0.113.66"), Port: 26}, Allow, ReasonMode, ""},
		{"8: a name", allow, Request{Kind: KindConnection, Name: "x.wild.test", Addr: addr("192.0.2.1"), Port: 1}, Allow, ReasonRule, "*.wild.test"},
		{"8: bytes that name nothing, to an attributed address", allow, Request{Kind: KindConnection, Addr: addr("192.0.2.1"), Port: 443, Attributed: []string{"a.test"}}, Allow, ReasonRule, "a.test:443"},
		{"8: a UDP packet to an attributed address", allow, Request{Kind: KindPacket, Addr: addr("192.0.2.1"), Port: 123, Protocol: UDP, Attributed: []string{"t.test"}}, Allow, ReasonRule, "t.test:123/udp"},
		{"8: a private address attributed to a name without private", allow, Request{Kind: KindConnection, Addr: addr("10.0.0.1"), Port: 443, Attributed: []string{"a.test"}}, Deny, ReasonSpecialAddress, ""},
		{"8: an attribution to a denied name allows nothing", carved, Request{Kind: KindConnection, Addr: addr("192.0.2.1"), Port: 443, Attributed: []string{"bad.test"}}, Deny, ReasonDenied, "bad.test"},
		{"8: a name that is an allowed address", allow, Request{Name: "203.0.113.5", Port: 443}, Allow, ReasonRule, "203.0.113.0/28:443"},
		{"8: a name that is an address in disguise is malformed", allow, Request{Name: "0x7f000001", Port: 443}, Deny, ReasonMalformed, ""},
		{"9: the other protocol of a name", allow, Request{Name: "t.test", Port: 123}, Deny, ReasonProtocol, "t.test:123/udp"},
		{"9: the other protocol of an address", allow, Request{Addr: addr("198.51.100.1"), Port: 5, Protocol: UDP}, Deny, ReasonProtocol, "198.51.100.1/tcp"},
		{"9: ICMP to a TCP target", allow, Request{Kind: KindPacket, Addr: addr("198.51.100.1"), Protocol: ICMP}, Deny, ReasonProtocol, "198.51.100.1/tcp"},
		{"9: a UDP packet to a TCP name's address", allow, Request{Kind: KindPacket, Addr: addr("192.0.2.1"), Port: 444, Protocol: UDP, Attributed: []string{"x.wild.test"}}, Deny, ReasonProtocol, "*.wild.test"},
		{"10: bytes that name nothing, to an address of no name", allow, Request{Kind: KindConnection, Addr: addr("192.0.2.1"), Port: 443}, Deny, ReasonNotAttributable, ""},
		{"10: never for a bare packet", allow, Request{Kind: KindPacket, Addr: addr("192.0.2.1"), Port: 443}, Deny, ReasonUnlisted, ""},
		{"10: nor when an address is only asked about", allow, Request{Addr: addr("192.0.2.1"), Port: 443}, Deny, ReasonUnlisted, ""},
		{"10: nor to an allowed name's address on another port", allow, Request{Kind: KindConnection, Addr: addr("192.0.2.1"), Port: 80, Attributed: []string{"a.test"}}, Deny, ReasonUnlisted, ""},
		{"11: unlisted", allow, Request{Name: "b.test", Port: 443}, Deny, ReasonUnlisted, ""},
		{"11: ICMP to a target with a port", allow, Request{Kind: KindPacket, Addr: addr("203.0.113.1"), Protocol: ICMP}, Deny, ReasonUnlisted, ""},
		{"11: a request of nothing", allow, Request{}, Deny, ReasonUnlisted, ""},

		{"DNS: an exact name of any type", allow, dns("a.test", 16), Allow, ReasonRule, "a.test:443"},
		{"DNS: but ANY", allow, dns("a.test", 255), Deny, ReasonQueryType, "a.test:443"},
		{"DNS: but AXFR", allow, dns("a.test", 252), Deny, ReasonQueryType, "a.test:443"},
		{"DNS: but IXFR", allow, dns("a.test", 251), Deny, ReasonQueryType, "a.test:443"},
		{"DNS: but NULL", allow, dns("a.test", 10), Deny, ReasonQueryType, "a.test:443"},
		{"DNS: but an obsolete type", allow, dns("a.test", 3), Deny, ReasonQueryType, "a.test:443"},
		{"DNS: a wildcard of A", allow, dns("x.wild.test", 1), Allow, ReasonRule, "*.wild.test"},
		{"DNS: a wildcard of SRV", allow, dns("_x._tcp.wild.test", 33), Allow, ReasonRule, "*.wild.test"},
		{"DNS: a wildcard of TXT is a tunnel", allow, dns("x.wild.test", 16), Deny, ReasonQueryType, "*.wild.test"},
		{"DNS: unlisted", allow, dns("wild.test", 1), Deny, ReasonUnlisted, ""},
		{"DNS: a name whose target is UDP alone", allow, dns("t.test", 1), Allow, ReasonRule, "t.test:123/udp"},
		{"DNS: denied", carved, dns("bad.test", 1), Deny, ReasonDenied, "bad.test"},
		{"DNS: not by a denied target with a port", carved, dns("web.test", 1), Allow, ReasonRule, "*.test"},
		{"DNS: nor by one with a protocol", carved, dns("u.test", 1), Allow, ReasonRule, "*.test"},
		{"DNS: the floor", `"public"`, dns("floor.test", 1), Deny, ReasonDenied, "floor:floor.test"},
		{"DNS: no-network", `"no-network"`, dns("a.test", 1), Deny, ReasonMode, ""},
		{"DNS: public, of any type", `"public"`, dns("a.test", 255), Allow, ReasonMode, ""},
		{"DNS: malformed", allow, Request{Kind: KindQuestion, Finding: FindingMalformed}, Deny, ReasonMalformed, ""},
		{"DNS: a whole family opens every name", `{"network_mode": "allowlist", "allowed_hosts": ["0.0.0.0/0:22"]}`, dns("x.test", 1), Allow, ReasonRule, "0.0.0.0/0:22"},
		{"DNS: a narrower range opens none", `{"network_mode": "allowlist", "allowed_hosts": ["0.0.0.0/1"]}`, dns("x.test", 1), Deny, ReasonUnlisted, ""},
	} {
		t.Run(c.about, func(t *testing.T) {
			var list []Target
			for _, text := range floor {
				list = append(list, mustTarget(t, text))
			}
			got := Compile(mustParse(t, c.document), Options{Floor: list, Generation: 3}).Decide(c.request)
			want := Decision{Verdict: c.verdict, Rule: c.rule, Reason: c.reason, Generation: 3}
			if got != want {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

func mustTarget(t testing.TB, text string) Target {
	t.Helper()
	target, err := ParseTarget(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return target
}

func TestTheZeroPolicyDenies(t *testing.T) {
	for _, mode := range []Mode{"", "Public", "everything"} {
		c := Compile(Document{Mode: mode, Allowed: []Target{mustTarget(t, "a.test")}}, Options{})
		if d := c.Decide(Request{Name: "a.test", Port: 443}); d.Verdict != Deny || d.Reason != ReasonMode {
			t.Errorf("mode %q: %+v", mode, d)
		}
	}
	if (Decision{}).Verdict != Deny {
		t.Error("the zero decision allows")
	}
}

func TestOpenings(t *testing.T) {
	c := Compile(mustParse(t, `{"network_mode": "allowlist", "allowed_hosts": ["a.test:443", {"host": "*.test", "port": 53, "protocol": "any"}, {"host": "q.test", "port": 443, "protocol": "udp"}, "b.test", "c.test:80"], "denied_hosts": ["c.test", "b.test:25"]}`), Options{})
	for name, want := range map[string][]Opening{
		"a.test":  {{443, TCP}, {53, TCP}, {53, UDP}},
		"a.test.": {{443, TCP}, {53, TCP}, {53, UDP}},
		"b.test":  {{0, TCP}, {53, TCP}, {53, UDP}},
		"c.test":  nil,
		"q.test":  {{53, TCP}, {53, UDP}}, // QUIC shows no name, and a name is denied
		"d.other": nil,
	} {
		if got := c.Openings(name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := Compile(Document{Mode: ModePublic}, Options{}).Openings("a.test"); got != nil {
		t.Errorf("public: %v", got)
	}
}

func TestAddressRules(t *testing.T) {
	c := Compile(mustParse(t, `{"network_mode": "allowlist", "allowed_hosts": ["a.test", "10.0.0.0/8", "[2001:db8::1]:443", {"host": "192.0.2.1", "protocol": "udp"}], "denied_hosts": ["10.1.0.0/16"]}`),
		Options{Floor: []Target{mustTarget(t, "169.254.169.254")}})
	want := []AddressRule{
		{netip.MustParsePrefix("10.0.0.0/8"), 0, true, true, true, "10.0.0.0/8"},
		{netip.MustParsePrefix("2001:db8::1/128"), 443, true, true, false, "[2001:db8::1]:443"},
		{netip.MustParsePrefix("192.0.2.1/32"), 0, false, true, false, "192.0.2.1/udp"},
	}
	if got := c.AllowedAddresses(); !slices.Equal(got, want) {
		t.Errorf("\n got %v\nwant %v", got, want)
	}
	want = []AddressRule{
		{netip.MustParsePrefix("169.254.169.254/32"), 0, true, true, true, "floor:169.254.169.254"},
		{netip.MustParsePrefix("10.1.0.0/16"), 0, true, true, true, "10.1.0.0/16"},
		{netip.MustParsePrefix("64:ff9b::a9fe:a9fe/128"), 0, true, true, true, "floor:169.254.169.254"},
		{netip.MustParsePrefix("2002:a9fe:a9fe::/48"), 0, true, true, true, "floor:169.254.169.254"},
		{netip.MustParsePrefix("64:ff9b::a01:0/112"), 0, true, true, true, "10.1.0.0/16"},
		{netip.MustParsePrefix("2002:a01::/32"), 0, true, true, true, "10.1.0.0/16"},
	}
	if got := c.DeniedAddresses(); !slices.Equal(got, want) {
		t.Errorf("\n got %v\nwant %v", got, want)
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	c := Compile(mustParse(t, `{"network_mode": "allowlist", "allowed_hosts": ["a.test:443", "*.b.c.test", "203.0.113.0/24", "2001:db8::/32"], "denied_hosts": ["x.a.test", "203.0.113.66"]}`), Options{Floor: []Target{mustTarget(t, "floor.test")}})
	attributed := []string{"n.b.c.test", "a.test"}
	for _, r := range []Request{
		{Name: "a.test", Port: 443},
		{Name: "very.long.name.with.labels.b.c.test", Port: 443},
		{Name: "unlisted.test", Port: 443},
		{Name: "x.a.test", Port: 443},
		{Name: "203.0.113.5", Port: 80},
		{Addr: netip.MustParseAddr("203.0.113.5"), Port: 22},
		{Addr: netip.MustParseAddr("::ffff:203.0.113.66"), Port: 22},
		{Addr: netip.MustParseAddr("2001:db9::1"), Port: 22, Kind: KindPacket},
		{Addr: netip.MustParseAddr("192.0.2.1"), Port: 443, Kind: KindConnection, Attributed: attributed},
		{Kind: KindQuestion, Name: "n.b.c.test", QType: 16},
		{Kind: KindQuestion, Name: "a.test", QType: 1},
	} {
		if n := testing.AllocsPerRun(100, func() { c.Decide(r) }); n != 0 {
			t.Errorf("%+v: %v allocations", r, n)
		}
	}
	addr := netip.MustParseAddr("10.0.0.1")
	if n := testing.AllocsPerRun(100, func() { c.DecideAddress("a.test", addr, 443, TCP, false) }); n != 0 {
		t.Errorf("DecideAddress: %v allocations", n)
	}
}

func TestUDPIsOpenedOnAnAddressAsItsClassAllows(t *testing.T) {
	c := Compile(mustParse(t, `{"network_mode": "allowlist", "allowed_hosts": [
		{"host": "a.test", "port": 7, "protocol": "udp"}, {"host": "a.test", "port": 443, "private": true},
		{"host": "*.b.test", "port": 7, "protocol": "udp", "private": true}, {"host": "169.254.169.254", "port": 7, "protocol": "udp"}]}`), Options{})
	for _, test := range []struct {
		name, addr string
		want       bool
	}{
		{"a.test", "203.0.113.7", true},
		{"a.test", "10.0.0.7", false},
		{"x.b.test", "10.0.0.7", true},
		{"x.b.test.", "fd00::7", true},
		{"x.b.test", "169.254.169.254", false},
		{"x.b.test", "64:ff9b::a9fe:a9fe", false},
		{"x.b.test", "127.0.0.1", false},
		{"x.b.test", "0.0.0.0", false},
	} {
		if got := c.OpensUDP(test.name, netip.MustParseAddr(test.addr), 7); got != test.want {
			t.Errorf("%s on %s: %v, want %v", test.name, test.addr, got, test.want)
		}
	}
}
