package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Diff is what differs between two policies, by target: a target that either of
// them names, in canonical form, with "/tcp", "/udp" or "/icmp" after it where
// not all that it covers differs; then what neither names ("every other name").
// A target stands for what no narrower target of the two covers.
type Diff struct {
	Allowed []string `json:"allowed"` // allowed by the second alone
	Denied  []string `json:"denied"`  // allowed by the first alone
}

// Compare says what b allows that a does not, and the reverse. It asks both about
// a sample of each target, so that two spellings of one policy do not differ.
func Compare(a, b *Compiled) Diff {
	c := comparison{a: a, b: b, diff: Diff{Allowed: []string{}, Denied: []string{}}}
	modeA, modeB := c.mention(a), c.mention(b)
	c.allowlists = modeA == ModeAllowlist && modeB == ModeAllowlist
	c.prepare()
	for _, key := range c.order {
		c.compareTarget(key, c.facets[key])
	}
	c.compareRest()
	return c.diff
}

// facets are the things about one target that can differ: a set of bits.
type facets uint8

const (
	facetTCP facets = 1 << iota
	facetUDP
	facetICMP
	facetPrivate // the name may resolve to private addresses
)

// comparison is the state of one Compare.
type comparison struct {
	a, b *Compiled
	diff Diff

	allowlists bool              // both are
	order      []Target          // each host and port once, in order of mention
	facets     map[Target]facets // what is asked about each
	labels     map[string]bool   // every label of every name that is mentioned
	ports      map[uint16]bool

	prefixes []netip.Prefix // sorted, each once
	isPrefix map[netip.Prefix]bool

	otherPort  uint16 // a port that no target mentions
	freshLabel string // a label that no target mentions
}

// mention collects the targets of a policy and its floor, and gives its mode.
func (c *comparison) mention(p *Compiled) Mode {
	if c.facets == nil {
		c.facets = map[Target]facets{}
		c.labels = map[string]bool{}
		c.ports = map[uint16]bool{53: true, 80: true, 443: true} // these have rules of their own
		c.isPrefix = map[netip.Prefix]bool{}
	}
	doc := p.Document()
	for _, list := range [][]Target{doc.Allowed, doc.Denied, p.Floor()} {
		for _, t := range list {
			key := Target{Name: t.Name, Wildcard: t.Wildcard, Prefix: t.Prefix, Port: t.Port}
			if _, known := c.facets[key]; !known {
				c.order = append(c.order, key)
			}
			c.facets[key] |= facetsOf(t)
			c.ports[t.Port] = true
			if t.Name != "" {
				for label := range strings.SplitSeq(t.Name, ".") {
					c.labels[label] = true
				}
			} else {
				c.isPrefix[t.Prefix] = true
			}
		}
	}
	return doc.Mode
}

// facetsOf are what a target covers as it is written. (An unwritten protocol of
// a denied name covers UDP too, but what it takes away is UDP to addresses.)
func facetsOf(t Target) facets {
	var f facets
	switch t.Proto {
	case ProtocolTCP:
		f = facetTCP
	case ProtocolUDP:
		f = facetUDP
	case ProtocolAny:
		f = facetTCP | facetUDP
	case ProtocolUnset:
		f = usualFacets(t) &^ facetPrivate
	}
	if t.Proto == ProtocolAny && t.Name == "" {
		f = usualFacets(t)
	}
	if t.Name != "" {
		f |= facetPrivate
	}
	return f
}

// usualFacets are those of a target that writes no protocol.
func usualFacets(t Target) facets {
	switch {
	case t.Name != "":
		return facetTCP
	case t.Port != 0:
		return facetTCP | facetUDP
	}
	return facetTCP | facetUDP | facetICMP
}

// prepare sorts what mention collected, and chooses the port and the label that
// stand for all that are not mentioned.
func (c *comparison) prepare() {
	for p := range c.isPrefix {
		c.prefixes = append(c.prefixes, p)
	}
	slices.SortFunc(c.prefixes, comparePrefixes)
	c.otherPort = 65535
	for c.ports[c.otherPort] && c.otherPort > 1 {
		c.otherPort--
	}
	c.freshLabel = "other"
	for n := 1; c.labels[c.freshLabel]; n++ {
		c.freshLabel = fmt.Sprintf("other%d", n)
	}
}

// comparePrefixes sorts a range before the ranges inside it.
func comparePrefixes(p, q netip.Prefix) int {
	if d := p.Addr().Compare(q.Addr()); d != 0 {
		return d
	}
	return p.Bits() - q.Bits()
}

// compareTarget asks about a sample of one target and notes what differs.
func (c *comparison) compareTarget(t Target, asked facets) {
	sample := Request{Port: t.Port, Name: t.Name}
	if t.Port == 0 {
		sample.Port = c.otherPort
	}
	if t.Wildcard {
		sample.Name = c.freshLabel + "." + t.Name
	}
	if t.Name == "" {
		addr, found := c.gap(t.Prefix)
		if !found {
			return // narrower targets say it all
		}
		sample.Addr = addr
	}
	gained, lost := c.ask(sample, asked)
	note := func(list *[]string, f facets) {
		if f&^facetPrivate != 0 {
			*list = append(*list, t.String()+suffix(f&^facetPrivate, usualFacets(t)))
		} else if f&facetPrivate != 0 {
			*list = append(*list, t.String()+" private")
		}
	}
	note(&c.diff.Allowed, gained)
	note(&c.diff.Denied, lost)
}

// ask puts one sample to both policies, a facet at a time.
func (c *comparison) ask(sample Request, asked facets) (gained, lost facets) {
	for _, facet := range []facets{facetTCP, facetUDP, facetICMP, facetPrivate} {
		if asked&facet == 0 || facet == facetPrivate && !c.allowlists {
			continue // the other modes have no rule of their own about private addresses
		}
		before, after := allows(c.a, sample, facet), allows(c.b, sample, facet)
		switch {
		case after && !before:
			gained |= facet
		case before && !after:
			lost |= facet
		}
	}
	return gained, lost
}

// allows says whether a policy allows one facet of a sample.
func allows(p *Compiled, sample Request, facet facets) bool {
	switch facet {
	case facetUDP:
		sample.Protocol = UDP
	case facetICMP:
		sample.Protocol, sample.Port = ICMP, 0
	case facetPrivate:
		private := netip.AddrFrom4([4]byte{10, 255, 255, 254})
		return p.Decide(sample).Verdict == Allow &&
			p.DecideAddress(sample.Name, private, sample.Port, TCP, false).Verdict == Allow
	}
	return p.Decide(sample).Verdict == Allow
}

// suffix names the protocols where they are not the usual ones.
func suffix(f, usual facets) string {
	if f == usual {
		return ""
	}
	text := ""
	for _, p := range []struct {
		facet facets
		name  string
	}{{facetTCP, "/tcp"}, {facetUDP, "/udp"}, {facetICMP, "/icmp"}} {
		if f&p.facet != 0 {
			text += p.name
		}
	}
	return text
}
