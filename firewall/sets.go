package firewall

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// Address targets become three sets a family, since exact keys are cheap to
// change and ranges are not (nftables-notes, "Sets"): exact addresses with a
// port, exact addresses with every port, and ranges.
const (
	suffixHost = "_host" // address . port . protocol
	suffixAny  = "_any"  // address . protocol
	suffixNet  = "_net"  // address . port . protocol, as ranges
)

// family is one of the two address families, and how sets are called for it.
type family struct {
	v4    bool
	digit string
	addr  Field
	icmp  uint8
}

func families() [2]family {
	return [2]family{
		{v4: true, digit: "4", addr: FieldIPv4, icmp: unix.IPPROTO_ICMP},
		{v4: false, digit: "6", addr: FieldIPv6, icmp: unix.IPPROTO_ICMPV6},
	}
}

// hostSet, anySet and netSet are the empty sets of a list of address targets.
func (f family) hostSet(list string) Set {
	return Set{Name: list + f.digit + suffixHost, Fields: []Field{f.addr, FieldPort, FieldProto}}
}

func (f family) anySet(list string) Set {
	return Set{Name: list + f.digit + suffixAny, Fields: []Field{f.addr, FieldProto}}
}

func (f family) netSet(list string) Set {
	return Set{Name: list + f.digit + suffixNet, Fields: []Field{f.addr, FieldPort, FieldProto}, Interval: true}
}

// dnsSet holds the resolvers that may be asked directly: allowed address
// targets with port 53 written out.
func (f family) dnsSet() Set {
	return Set{Name: "dns" + f.digit, Fields: []Field{f.addr, FieldPort, FieldProto}, Interval: true}
}

// synSet and synAnySet hold where TCP may be begun because the resolver handed
// the address out for an allowed name; udpSet where UDP may go for that reason.
func (f family) synSet() Set {
	return Set{Name: "syn" + f.digit, Fields: []Field{f.addr, FieldPort}, Timeout: true}
}

func (f family) synAnySet() Set {
	return Set{Name: "syn" + f.digit + suffixAny, Fields: []Field{f.addr}, Timeout: true}
}

func (f family) udpSet() Set {
	return Set{Name: "udp" + f.digit, Fields: []Field{f.addr, FieldPort}, Timeout: true}
}

// addressSets are the sets of one list of address targets, filled.
func addressSets(list string, rules []policy.AddressRule) []Set {
	var sets []Set
	for _, f := range families() {
		host, exact, net := f.hostSet(list), f.anySet(list), f.netSet(list)
		var ranges []policy.AddressRule
		for i, r := range rules {
			switch {
			case r.Prefix.Addr().Is4() != f.v4:
			case r.Prefix.Bits() < r.Prefix.Addr().BitLen():
				ranges = append(ranges, r)
			case r.Port != 0:
				if host.Elements == nil {
					host.Elements = make([]Element, 0, len(rules)-i)
				}
				for _, p := range f.protocols(r) {
					host.Elements = append(host.Elements, Element{Key: Key(r.Prefix.Addr(), r.Port, p)})
				}
			default:
				for _, p := range f.protocols(r) {
					exact.Elements = append(exact.Elements, Element{Key: Key(r.Prefix.Addr(), p)})
				}
			}
		}
		for _, s := range []*Set{&host, &exact} {
			s.Elements = unique(s.Elements)
			s.Size = roomFor(len(s.Elements))
		}
		net.Elements = f.rangeElements(ranges)
		sets = append(sets, host, exact, net)
	}
	return sets
}

// sizedFrom is from how many elements on a set gets a size.
const sizedFrom = 256

// roomFor is the size of a set of n exact elements: of one whose size it knows the
// kernel makes a hash table that never has to grow, and takes a new element in half
// the time. There is room for those that swaps will add in place.
func roomFor(n int) int {
	if n < sizedFrom {
		return 0
	}
	return n + max(n/4, 1024)
}

// protocols are those that a rule covers; ICMP has no ports.
func (f family) protocols(r policy.AddressRule) []uint8 {
	var p []uint8
	if r.TCP {
		p = append(p, unix.IPPROTO_TCP)
	}
	if r.UDP {
		p = append(p, unix.IPPROTO_UDP)
	}
	if r.ICMP && r.Port == 0 {
		p = append(p, f.icmp)
	}
	return p
}

// unique sorts elements and keeps the longest-lived of each key.
func unique(elems []Element) []Element {
	slices.SortFunc(elems, func(a, b Element) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(b.Timeout, a.Timeout))
	})
	return slices.CompactFunc(elems, func(a, b Element) bool { return a.Key == b.Key })
}

// rangeElements merges ranges until none overlaps another, which the kernel
// would refuse (trap: EEXIST): those of every port first, then of each port
// what is left.
func (f family) rangeElements(rules []policy.AddressRule) []Element {
	type group struct {
		proto uint8
		port  uint16
	}
	builders := map[group]*netipx.IPSetBuilder{}
	for _, r := range rules {
		for _, p := range f.protocols(r) {
			g := group{p, r.Port}
			if builders[g] == nil {
				builders[g] = &netipx.IPSetBuilder{}
			}
			builders[g].AddPrefix(r.Prefix)
		}
	}
	groups := make([]group, 0, len(builders))
	for g := range builders {
		groups = append(groups, g)
	}
	// Port 0 comes first, and is whole by the time that others are cut by it.
	slices.SortFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.port, b.port))
	})
	var elems []Element
	everyPort := map[uint8]*netipx.IPSet{}
	for _, g := range groups {
		b := builders[g]
		from, to := g.port, g.port
		if g.port == 0 {
			to = 65535
		} else if every := everyPort[g.proto]; every != nil {
			b.RemoveSet(every)
		}
		// Only prefixes of parsed targets are added, so there is no error to have.
		set, err := b.IPSet()
		if err != nil {
			continue
		}
		if g.port == 0 {
			everyPort[g.proto] = set
		}
		for _, r := range set.Ranges() {
			elems = append(elems, Element{Key: Key(r.From(), from, g.proto), End: Key(r.To(), to, g.proto)})
		}
	}
	return elems
}

// dnsSets are the resolvers that rules open.
func dnsSets(rules []policy.AddressRule) []Set {
	var sets []Set
	for _, f := range families() {
		var of []policy.AddressRule
		for _, r := range rules {
			if r.Prefix.Addr().Is4() == f.v4 && r.Port == 53 {
				of = append(of, r)
			}
		}
		s := f.dnsSet()
		s.Elements = f.rangeElements(of)
		sets = append(sets, s)
	}
	return sets
}

// metadataRules are the addresses of metadata services, and the same within
// NAT64 and 6to4 addresses: mode denylist denies them (policy.md section 4).
func metadataRules() []policy.AddressRule {
	var rules []policy.AddressRule
	for _, s := range []string{
		"169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32",
		"fd00:ec2::/32",
		"64:ff9b::a9fe:0/112", "64:ff9b::6464:64c8/128", "64:ff9b::a83f:8110/128",
		"2002:a9fe::/32", "2002:6464:64c8::/48", "2002:a83f:8110::/48",
	} {
		rules = append(rules, policy.AddressRule{Prefix: netip.MustParsePrefix(s), TCP: true, UDP: true, ICMP: true})
	}
	return rules
}

// Attributed is one opening that an allowed name has on an address which the
// resolver handed out for it. Timeout 0 lasts until a swap takes it away.
type Attributed struct {
	Name    string // for whose sake; several may open the same
	Addr    netip.Addr
	Opening policy.Opening
	Timeout time.Duration
}

// place says in which set the opening stands, with which element; false for
// one that no set holds (a name opens UDP only with a port, and never ICMP).
func (a Attributed) place() (Set, Element, bool) {
	f := families()[1]
	if a.Addr.Is4() {
		f = families()[0]
	}
	e := Element{Timeout: a.Timeout}
	switch {
	case a.Opening.Protocol == policy.TCP && a.Opening.Port != 0:
		e.Key = Key(a.Addr, a.Opening.Port)
		return f.synSet(), e, true
	case a.Opening.Protocol == policy.TCP:
		e.Key = Key(a.Addr)
		return f.synAnySet(), e, true
	case a.Opening.Protocol == policy.UDP && a.Opening.Port != 0:
		e.Key = Key(a.Addr, a.Opening.Port)
		return f.udpSet(), e, true
	}
	return Set{}, Element{}, false
}

// attributedSets are the six sets of attributed addresses, filled.
func attributedSets(entries []Attributed) []Set {
	var sets []Set
	at := map[string]int{}
	for _, f := range families() {
		for _, s := range []Set{f.synSet(), f.synAnySet(), f.udpSet()} {
			at[s.Name] = len(sets)
			sets = append(sets, s)
		}
	}
	for _, a := range entries {
		if s, e, ok := a.place(); ok {
			i := at[s.Name]
			sets[i].Elements = append(sets[i].Elements, e)
		}
	}
	for i := range sets {
		sets[i].Elements = unique(sets[i].Elements)
	}
	return sets
}
