package firewall

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// SealedTable is the table of a sealed sandbox, alone in its namespace.
var SealedTable = Table{Family: Inet, Name: "exeat"}

// SealedPorts are where the listeners are inside, on 127.0.0.1 and ::1; 0 where
// there is none because the kernel has no such family.
type SealedPorts struct {
	Transparent4, Transparent6 uint16
	DNSUDP4, DNSUDP6           uint16
	DNSTCP4, DNSTCP6           uint16
}

// SealedInput is all that the ruleset of a sealed sandbox follows from.
type SealedInput struct {
	Ports SealedPorts
	// Policy is nil before the first one: everything goes to the proxy, which then
	// denies.
	Policy *policy.Compiled
	// Attributed are what the allowed names open on addresses handed out for them.
	Attributed []Attributed
	// Strict refuses unknown destinations on ports 80 and 443 too, whose
	// connections are read otherwise, for the sake of addresses not of our resolver.
	Strict bool
	// LogGroup is the NFLOG group that is told of what is refused; 0 is none.
	LogGroup uint16
}

// Log prefixes of the sealed ruleset: why a packet was refused.
const (
	// SealedUnlisted is the SYN of a connection that no target can allow.
	SealedUnlisted = "unlisted"
	// SealedPacket is what cannot leave in this shape: all but TCP and DNS.
	SealedPacket = "packet"
	// SealedListener is a connection to a listener that was not redirected there.
	SealedListener = "listener"
)

// sealedSnap is how much of a refused packet is logged: all headers that are read.
const sealedSnap = 128

// SealedRuleset is the ruleset within a sealed sandbox. There is no way out of
// its namespace, so that the rules only bring TCP and DNS to the listeners, and
// refuse everything else at once.
func SealedRuleset(in SealedInput) Ruleset {
	t := SealedTable
	allow := addressSets("allow", in.allowed())
	t.Sets = append(allow, attributedSets(in.Attributed)...)
	t.Chains = []Chain{in.raw(), in.guard(), in.syn(t.Sets), in.nat(), in.out()}
	return Ruleset{Tables: []Table{t}}
}

// checksSYN says whether the policy knows every destination beforehand.
func (in SealedInput) checksSYN() bool {
	return in.Policy != nil && in.Policy.Document().Mode == policy.ModeAllowlist
}

func (in SealedInput) allowed() []policy.AddressRule {
	if !in.checksSYN() {
		return nil
	}
	return in.Policy.AllowedAddresses()
}

// raw keeps the agent's traffic with itself out of the connection table (B39).
func (in SealedInput) raw() Chain {
	ours := in.Ports.all()
	return Chain{
		Name: "raw", Hook: &Hook{Type: "filter", Point: Output, Priority: -300},
		Rules: []Rule{
			NewRule(ToLocal(), TCPorUDP(), NotDPort(append([]uint16{dnsPort}, ours...)...), NotSPort(ours...), NoTrack()).
				Comments("the agent's own loopback traffic"),
		},
	}
}

const dnsPort = 53

func (p SealedPorts) all() []uint16 {
	return present(p.Transparent4, p.Transparent6, p.DNSUDP4, p.DNSUDP6, p.DNSTCP4, p.DNSTCP6)
}

// present are the ports that there are, each once.
func present(ports ...uint16) []uint16 {
	var out []uint16
	seen := map[uint16]bool{0: true}
	for _, p := range ports {
		if !seen[p] {
			out = append(out, p)
		}
		seen[p] = true
	}
	return out
}

// guard sees every new flow before it is redirected.
func (in SealedInput) guard() Chain {
	c := Chain{Name: "guard", Hook: &Hook{Type: "filter", Point: Output, Priority: -150}}
	tcp := present(in.Ports.Transparent4, in.Ports.Transparent6, in.Ports.DNSTCP4, in.Ports.DNSTCP6)
	udp := present(in.Ports.DNSUDP4, in.Ports.DNSUDP6)
	c.Rules = []Rule{
		// Dialled directly, the proxy would dial itself for ever (B37).
		NewRule(in.refuse(SealedListener, CTState(StateNew), ToLocal(), TCPDPort(tcp...), RejectTCP())...),
		NewRule(in.refuse(SealedListener, CTState(StateNew), ToLocal(), UDPDPort(udp...), RejectAdmin())...),
	}
	if in.checksSYN() {
		c.Rules = append(c.Rules, NewRule(CTState(StateNew), ToForeign(), L4(unix.IPPROTO_TCP), Jump("syn")))
	}
	return c
}

// refuse puts a log statement before the last of the statements.
func (in SealedInput) refuse(why string, statements ...Statement) []Statement {
	if in.LogGroup == 0 {
		return statements
	}
	last := len(statements) - 1
	return append(statements[:last:last], LogTo(in.LogGroup, why, sealedSnap), statements[last])
}

// syn refuses connections to destinations that no target can allow, whatever
// they might say. It is there in every mode, and used in mode allowlist.
func (in SealedInput) syn(sets []Set) Chain {
	open := []uint16{dnsPort, 80, 443}
	if in.Strict {
		open = open[:1]
	}
	c := Chain{Name: "syn", Rules: []Rule{NewRule(TCPDPort(open...), Return())}}
	for _, s := range sets {
		if s.holdsUDP() {
			continue
		}
		proto := uint8(0) // known already: only TCP comes here
		if slices.Contains(s.Fields, FieldPort) {
			proto = unix.IPPROTO_TCP
		}
		c.Rules = append(c.Rules, NewRule(InSet(s, proto), Return()))
	}
	c.Rules = append(c.Rules, NewRule(in.refuse(SealedUnlisted, RejectTCP())...))
	return c
}

// holdsUDP tells the sets that speak of UDP alone, which never leaves here.
func (s Set) holdsUDP() bool {
	for _, f := range families() {
		if s.Name == f.udpSet().Name {
			return true
		}
	}
	return false
}

// nat brings port 53 to the resolver, whatever address was asked, and all other
// TCP that is not the agent's with itself to the proxy.
func (in SealedInput) nat() Chain {
	c := Chain{Name: "nat", Hook: &Hook{Type: "nat", Point: Output, Priority: -100}}
	add := func(port uint16, match ...Statement) {
		if port != 0 {
			c.Rules = append(c.Rules, NewRule(append(match, Redirect(port))...))
		}
	}
	add(in.Ports.DNSUDP4, IsIPv4(), UDPDPort(dnsPort))
	add(in.Ports.DNSTCP4, IsIPv4(), TCPDPort(dnsPort))
	add(in.Ports.DNSUDP6, IsIPv6(), UDPDPort(dnsPort))
	add(in.Ports.DNSTCP6, IsIPv6(), TCPDPort(dnsPort))
	c.Rules = append(c.Rules, NewRule(ToLocal(), Accept()))
	add(in.Ports.Transparent4, IsIPv4(), L4(unix.IPPROTO_TCP))
	add(in.Ports.Transparent6, IsIPv6(), L4(unix.IPPROTO_TCP))
	return c
}

// out lets pass what stays inside, which by now all redirected traffic does.
func (in SealedInput) out() Chain {
	return Chain{
		Name: "out", Hook: &Hook{Type: "filter", Point: Output, Drop: true},
		Rules: []Rule{
			NewRule(ToLocal(), Accept()),
			NewRule(in.refuse(SealedPacket, L4(unix.IPPROTO_TCP), RejectTCP())...),
			NewRule(in.refuse(SealedPacket, RejectAdmin())...),
			NewRule(Drop()),
		},
	}
}

// SealedOpenings are the changes to the sets in force that open what allowed
// names open on addresses that are about to be handed out.
func SealedOpenings(entries []Attributed) []SetChange { return changesOf(entries, nil) }
