package policy

import (
	"net/netip"
	"testing"
)

// Each block of policy.md section 4 by its first and last address, and the
// addresses on either side.
func TestClassBoundaries(t *testing.T) {
	for _, c := range []struct {
		addr string
		want Class
	}{
		{"0.0.0.0", Unspecified},
		{"0.0.0.1", Reserved},
		{"0.255.255.255", Reserved},
		{"1.0.0.0", Public},
		{"9.255.255.255", Public},
		{"10.0.0.0", Private},
		{"10.255.255.255", Private},
		{"11.0.0.0", Public},
		{"100.63.255.255", Public},
		{"100.64.0.0", Private},
		{"100.127.255.255", Private},
		{"100.128.0.0", Public},
		{"100.100.100.199", Private},
		{"100.100.100.200", Metadata},
		{"100.100.100.201", Private},
		{"126.255.255.255", Public},
		{"127.0.0.0", Loopback},
		{"127.255.255.255", Loopback},
		{"128.0.0.0", Public},
		{"168.63.129.15", Public},
		{"168.63.129.16", Metadata},
		{"168.63.129.17", Public},
		{"169.253.255.255", Public},
		{"169.254.0.0", Metadata},
		{"169.254.169.254", Metadata},
		{"169.254.255.255", Metadata},
		{"169.255.0.0", Public},
		{"172.15.255.255", Public},
		{"172.16.0.0", Private},
		{"172.31.255.255", Private},
		{"172.32.0.0", Public},
		{"191.255.255.255", Public},
		{"192.0.0.0", Reserved},
		{"192.0.0.192", Reserved},
		{"192.0.0.255", Reserved},
		{"192.0.1.0", Public},
		{"192.0.2.1", Public},
		{"198.51.100.1", Public},
		{"203.0.113.1", Public},
		{"192.88.98.255", Public},
		{"192.88.99.0", Reserved},
		{"192.88.99.255", Reserved},
		{"192.88.100.0", Public},
		{"192.167.255.255", Public},
		{"192.168.0.0", Private},
		{"192.168.255.255", Private},
		{"192.169.0.0", Public},
		{"198.17.255.255", Public},
		{"198.18.0.0", Private},
		{"198.19.255.255", Private},
		{"198.20.0.0", Public},
		{"223.255.255.255", Public},
		{"224.0.0.0", Multicast},
		{"239.255.255.255", Multicast},
		{"240.0.0.0", Reserved},
		{"255.255.255.254", Reserved},
		{"255.255.255.255", Broadcast},

		{"::", Unspecified},
		{"::1", Loopback},
		{"::2", Reserved},
		{"1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Reserved},
		{"2000::", Public},
		{"3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Public},
		{"4000::", Reserved},
		{"2001:db8::1", Public},
		{"3fff::1", Public},
		{"2001:1::", Reserved},
		{"2001:1:ffff::", Reserved},
		{"2001:2::", Private},
		{"2001:2:0:ffff:ffff:ffff:ffff:ffff", Private},
		{"2001:2:1::", Reserved},
		{"2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", Reserved},
		{"2001:200::", Public},
		{"fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Reserved},
		{"fc00::", Private},
		{"fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Private},
		{"fe00::", Reserved},
		{"fd00:ec1:ffff:ffff:ffff:ffff:ffff:ffff", Private},
		{"fd00:ec2::", Metadata},
		{"fd00:ec2::254", Metadata},
		{"fd00:ec2:ffff:ffff:ffff:ffff:ffff:ffff", Metadata},
		{"fd00:ec3::", Private},
		{"fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Reserved},
		{"fe80::", LinkLocal},
		{"fe80::1%eth0", LinkLocal},
		{"febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", LinkLocal},
		{"fec0::", Reserved},
		{"feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Reserved},
		{"ff00::", Multicast},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Multicast},
		{"100::", Reserved},
		{"5f00::", Reserved},

		// Mapped, compatible, and the translated form that is neither.
		{"::ffff:8.8.8.8", Public},
		{"::ffff:10.0.0.1", Private},
		{"::ffff:127.0.0.1", Loopback},
		{"::ffff:169.254.169.254", Metadata},
		{"::10.0.0.1", Private},
		{"::127.0.0.1", Loopback},
		{"::169.254.169.254", Metadata},
		{"::8.8.8.8", Reserved},
		{"::ffff:0:8.8.8.8", Reserved},
		// NAT64.
		{"64:ff9a:ffff:ffff:ffff:ffff:ffff:ffff", Reserved},
		{"64:ff9b::8.8.8.8", Public},
		{"64:ff9b::10.0.0.1", Private},
		{"64:ff9b::127.0.0.1", Loopback},
		{"64:ff9b::169.254.169.254", Metadata},
		{"64:ff9b::1:0:0", Reserved},
		{"64:ff9b:0:ffff::1", Reserved},
		{"64:ff9b:1::8.8.8.8", Public},
		{"64:ff9b:1::10.0.0.1", Private},
		{"64:ff9b:1::169.254.169.254", Metadata},
		{"64:ff9b:1:a9fe:a9:fe00::", Metadata},    // the /48 of RFC 6052
		{"64:ff9b:1:ffff:ff08:808:800:1", Public}, // no form of RFC 6052 but /96: 8.0.0.1
		{"64:ff9b:1:1:a9:fea9:fe00:0", Metadata},  // the /64
		{"64:ff9b:1:ffff:ffff:ffff:808:808", Public},
		{"64:ff9b:2::8.8.8.8", Reserved},
		// 6to4.
		{"2002:808:808::1", Public},
		{"2002:a00:1::1", Private},
		{"2002:7f00:1::", Loopback},
		{"2002:a9fe:a9fe::1", Metadata},
		{"2003::", Public},
		// Teredo: server in the second word, the client inverted at the end.
		{"2001:0:808:808::f7f7:f7f7", Public},
		{"2001:0:808:808::f5ff:fffe", Private},
		{"2001:0:808:808::5601:5601", Metadata},
		{"2001:0:a00:1::f7f7:f7f7", Private},
		{"2001:0:7f00:1::f7f7:f7f7", Loopback},
		// ISATAP, under any prefix and with either u bit.
		{"2001:db8::5efe:8.8.8.8", Public},
		{"2001:db8::5efe:10.0.0.1", Private},
		{"2001:db8::200:5efe:169.254.169.254", Metadata},
		{"fd00::5efe:169.254.169.254", Metadata},
		{"fd00::5efe:8.8.8.8", Private},
		{"fe80::5efe:10.0.0.1", LinkLocal},
		{"2001:db8::300:5efe:10.0.0.1", Public},
	} {
		if got := ClassOf(netip.MustParseAddr(c.addr)); got != c.want {
			t.Errorf("%s is %s, want %s", c.addr, got, c.want)
		}
	}
	if got := ClassOf(netip.Addr{}); got != Reserved {
		t.Errorf("the zero address is %s", got)
	}
}

// What a name may resolve to, by mode, class and lift.
func TestDecideAddress(t *testing.T) {
	allowlist := `{"network_mode": "allowlist", "allowed_hosts": ["plain.test:443", {"host": "inside.test", "port": 443, "private": true}, "db:5432", "169.254.169.254:80", "10.9.0.0/16"], "denied_hosts": ["203.0.113.66", "203.0.113.67:25"]}`
	denylist := `{"network_mode": "denylist", "denied_hosts": ["203.0.113.66"]}`
	for _, c := range []struct {
		about    string
		document string
		name     string
		addr     string
		port     uint16
		pinned   bool
		verdict  Verdict
		reason   Reason
	}{
		{"an allowed name on a public address", allowlist, "plain.test", "203.0.113.1", 443, false, Allow, ReasonRule},
		{"the same as an answer, whose port is not known", allowlist, "plain.test", "203.0.113.1", 0, false, Allow, ReasonRule},
		{"a trailing dot is dropped", allowlist, "plain.test.", "203.0.113.1", 443, false, Allow, ReasonRule},
		{"a port that the name does not have", allowlist, "plain.test", "203.0.113.1", 80, false, Deny, ReasonUnlisted},
		{"a private address of a name without private", allowlist, "plain.test", "10.0.0.1", 443, false, Deny, ReasonSpecialAddress},
		{"and as an answer", allowlist, "plain.test", "10.0.0.1", 0, false, Deny, ReasonSpecialAddress},
		{"a private address that an address target allows", allowlist, "plain.test", "10.9.0.1", 443, false, Allow, ReasonRule},
		{"a metadata address that an address target allows", allowlist, "plain.test", "169.254.169.254", 80, false, Allow, ReasonRule},
		{"a metadata address on another port", allowlist, "plain.test", "169.254.169.254", 443, false, Deny, ReasonSpecialAddress},
		{"private lifts private addresses", allowlist, "inside.test", "10.0.0.1", 443, false, Allow, ReasonRule},
		{"and unique local ones", allowlist, "inside.test", "fd00::1", 0, false, Allow, ReasonRule},
		{"but not metadata", allowlist, "inside.test", "100.100.100.200", 443, false, Deny, ReasonSpecialAddress},
		{"nor loopback", allowlist, "inside.test", "127.0.0.1", 443, false, Deny, ReasonSpecialAddress},
		{"nor link-local", allowlist, "inside.test", "fe80::1", 443, false, Deny, ReasonSpecialAddress},
		{"a single label has private implied", allowlist, "db", "172.18.0.2", 5432, false, Allow, ReasonRule},
		{"loopback of a pinned name", allowlist, "db", "127.0.0.1", 5432, true, Allow, ReasonRule},
		{"loopback of a name that is not pinned", allowlist, "db", "127.0.0.1", 5432, false, Deny, ReasonSpecialAddress},
		{"metadata of a pinned name", allowlist, "db", "169.254.169.254", 5432, true, Deny, ReasonSpecialAddress},
		{"a denied address", allowlist, "plain.test", "203.0.113.66", 443, false, Deny, ReasonDenied},
		{"a denied address, mapped", allowlist, "plain.test", "::ffff:203.0.113.66", 443, false, Deny, ReasonDenied},
		{"a denied address as an answer", allowlist, "plain.test", "203.0.113.66", 0, false, Deny, ReasonDenied},
		{"an address denied on one port is still answered", allowlist, "plain.test", "203.0.113.67", 0, false, Allow, ReasonRule},
		{"a zone is never dialled", allowlist, "inside.test", "fd00::1%eth0", 443, false, Deny, ReasonSpecialAddress},
		{"public judges no address", `"public"`, "plain.test", "127.0.0.1", 443, false, Allow, ReasonMode},
		{"no-network", `"no-network"`, "plain.test", "203.0.113.1", 443, false, Deny, ReasonMode},
		{"a denylist lets a name be private", denylist, "x.test", "10.0.0.1", 443, false, Allow, ReasonMode},
		{"but not loopback", denylist, "x.test", "127.0.0.1", 443, false, Deny, ReasonSpecialAddress},
		{"nor the unspecified address, which is loopback", denylist, "x.test", "0.0.0.0", 443, false, Deny, ReasonSpecialAddress},
		{"loopback where pinned", denylist, "x.test", "::1", 443, true, Allow, ReasonMode},
		{"nor metadata", denylist, "x.test", "169.254.169.254", 443, false, Deny, ReasonSpecialAddress},
		{"nor link-local", denylist, "x.test", "fe80::1", 443, false, Deny, ReasonSpecialAddress},
		{"nor what is denied", denylist, "x.test", "203.0.113.66", 443, false, Deny, ReasonDenied},
		{"one family alone: in it", `{"network_mode": "allowlist", "allowed_hosts": ["0.0.0.0/0:443"]}`, "x.test", "203.0.113.1", 443, false, Allow, ReasonRule},
		{"one family alone: in it, as an answer", `{"network_mode": "allowlist", "allowed_hosts": ["0.0.0.0/0:443"]}`, "x.test", "203.0.113.1", 0, false, Allow, ReasonRule},
		{"one family alone: the other", `{"network_mode": "allowlist", "allowed_hosts": ["0.0.0.0/0:443"]}`, "x.test", "2606:4700::1", 443, false, Deny, ReasonUnlisted},
		{"one family and a listed name: the other", `{"network_mode": "allowlist", "allowed_hosts": ["0.0.0.0/0", "x.test"]}`, "x.test", "2606:4700::1", 443, false, Allow, ReasonRule},
	} {
		t.Run(c.about, func(t *testing.T) {
			got := Compile(mustParse(t, c.document), Options{}).DecideAddress(c.name, netip.MustParseAddr(c.addr), c.port, TCP, c.pinned)
			if got.Verdict != c.verdict || got.Reason != c.reason {
				t.Errorf("%+v, want %s %s", got, c.verdict, c.reason)
			}
		})
	}
	if got := Compile(Document{Mode: ModePublic}, Options{}).DecideAddress("x.test", netip.Addr{}, 443, TCP, false); got.Verdict != Deny {
		t.Errorf("the zero address: %+v", got)
	}
}
