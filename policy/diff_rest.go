package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// compareRest asks about what neither policy mentions.
func (c *comparison) compareRest() {
	rest := []struct {
		label string
		asked facets
		addr  netip.Addr
	}{
		{"every other name", facetTCP, netip.Addr{}},
		{"every other IPv4 address", facetTCP | facetUDP | facetICMP, c.otherAddress(unmentioned4())},
		{"every other IPv6 address", facetTCP | facetUDP | facetICMP, c.otherAddress(unmentioned6())},
	}
	var gained, lost []string
	for i, r := range rest {
		sample := Request{Addr: r.addr, Port: c.otherPort}
		if i == 0 {
			sample.Name = c.freshLabel + "." + c.freshLabel
		} else if !r.addr.IsValid() {
			continue // the targets cover the family
		}
		g, l := c.ask(sample, r.asked)
		if g != 0 {
			gained = append(gained, r.label+suffix(g, r.asked))
		}
		if l != 0 {
			lost = append(lost, r.label+suffix(l, r.asked))
		}
	}
	c.diff.Allowed = append(c.diff.Allowed, everything(gained)...)
	c.diff.Denied = append(c.diff.Denied, everything(lost)...)
	c.compareExceptions(len(gained)+len(lost) > 0)
}

// everything is one line where all three of the rest differ alike.
func everything(labels []string) []string {
	if slices.Equal(labels, []string{"every other name", "every other IPv4 address", "every other IPv6 address"}) {
		return []string{"everything else"}
	}
	return labels
}

// compareExceptions asks about what the modes treat apart from the rest (policy.md
// section 3, steps 2 and 7): QUIC while a name is denied, and metadata addresses;
// and about the ports on which a whole family opens every name.
func (c *comparison) compareExceptions(restDiffers bool) {
	for _, t := range c.order {
		if t.Name == "" && t.Prefix.Bits() == 0 && t.Port != 0 {
			c.exception(fmt.Sprintf("every other name:%d", t.Port), Request{Name: c.freshLabel + "." + c.freshLabel, Port: t.Port}, facetTCP)
		}
	}
	if restDiffers {
		return // what differs in the rest includes these
	}
	if addr := c.otherAddress(unmentioned4()); addr.IsValid() {
		c.exception("QUIC (443/udp) to every other address", Request{Addr: addr, Port: 443}, facetUDP)
	}
	metadata := netip.MustParsePrefix("169.254.0.0/16")
	if addr, found := c.gap(metadata); found && !c.covered(metadata) {
		c.exception("metadata addresses", Request{Addr: addr, Port: c.otherPort}, facetTCP)
	}
}

// exception notes one sample under a label of its own.
func (c *comparison) exception(label string, sample Request, facet facets) {
	switch gained, lost := c.ask(sample, facet); {
	case gained != 0 && !slices.Contains(c.diff.Allowed, label):
		c.diff.Allowed = append(c.diff.Allowed, label)
	case lost != 0 && !slices.Contains(c.diff.Denied, label):
		c.diff.Denied = append(c.diff.Denied, label)
	}
}

// gap finds an address of p that no narrower mentioned range covers.
func (c *comparison) gap(p netip.Prefix) (netip.Addr, bool) {
	candidate := p.Addr()
	i, _ := slices.BinarySearchFunc(c.prefixes, p, comparePrefixes)
	for _, inner := range c.prefixes[i:] {
		if inner == p {
			continue
		}
		if !p.Contains(inner.Addr()) || candidate.Less(inner.Addr()) {
			break
		}
		if inner.Contains(candidate) {
			candidate = netipx.PrefixLastIP(inner).Next()
		}
		if !candidate.IsValid() || !p.Contains(candidate) {
			return netip.Addr{}, false
		}
	}
	return candidate, true
}

// covered says whether a mentioned range holds all of p.
func (c *comparison) covered(p netip.Prefix) bool {
	for bits := range p.Bits() + 1 {
		if c.isPrefix[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}

// otherAddress finds an ordinary address that no target mentions, in the first of
// ranges that has one.
func (c *comparison) otherAddress(ranges []netip.Prefix) netip.Addr {
	for _, p := range ranges {
		if c.covered(p) {
			continue
		}
		if addr, found := c.gap(p); found {
			return addr
		}
	}
	return netip.Addr{}
}

// unmentioned4 are ranges of ordinary IPv4 addresses to look for one in.
func unmentioned4() []netip.Prefix {
	var ranges []netip.Prefix
	for first := 1; first < 224; first++ {
		switch first {
		case 10, 100, 127, 168, 169, 172, 192, 198: // these hold special addresses
			continue
		}
		ranges = append(ranges, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(first)}), 8))
	}
	return ranges
}

// unmentioned6 are ranges of ordinary IPv6 addresses: the registries' own
// (IANA, IPv6 Global Unicast Address Assignments).
func unmentioned6() []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range []string{"2600::/12", "2a00::/12", "2400::/12", "2800::/12", "2c00::/12"} {
		ranges = append(ranges, netip.MustParsePrefix(text))
	}
	return ranges
}
