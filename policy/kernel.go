package policy

import (
	"hash/maphash"
	"net/netip"
)

// Differing is what two policies' lists have between what they begin with alike and
// what they end with alike: the targets of was that are gone, and those of is that
// have come. It looks at each target's digest alone, which Compile made, so that it
// takes a fraction of a millisecond for lists of 100,000: targets of one digest are
// taken for the same (64 bits, under a seed that nobody outside knows).
func Differing(was, is *Compiled) (allowed, denied Difference) {
	return differing(was.document.Allowed, is.document.Allowed, was.digests[0], is.digests[0]),
		differing(was.document.Denied, is.document.Denied, was.digests[1], is.digests[1])
}

// Difference is what one list lost and gained.
type Difference struct{ Gone, Come []Target }

func differing(was, is []Target, wasDigests, isDigests []uint64) Difference {
	start := 0
	for start < min(len(was), len(is)) && wasDigests[start] == isDigests[start] {
		start++
	}
	end := 0
	for end < min(len(was), len(is))-start && wasDigests[len(was)-1-end] == isDigests[len(is)-1-end] {
		end++
	}
	return Difference{Gone: was[start : len(was)-end], Come: is[start : len(is)-end]}
}

// digestSeed makes digests comparable within one process, and with nothing else.
var digestSeed = maphash.MakeSeed()

func digestsOf(targets []Target) []uint64 {
	digests := make([]uint64, len(targets))
	for i := range targets {
		digests[i] = maphash.Comparable(digestSeed, targets[i])
	}
	return digests
}

// AllowedAddress is what AllowedAddresses say about one single address, without its
// ranges; it looks at no other target, and gives no rule's text.
func (c *Compiled) AllowedAddress(addr netip.Addr) []AddressRule { return c.allowed.at(addr) }

func (x *index) at(addr netip.Addr) []AddressRule {
	if !addr.IsValid() {
		return nil
	}
	prefix := netip.PrefixFrom(addr, addr.BitLen())
	s := x.prefixes[prefix] // none is the empty span
	var rules []AddressRule
	for _, slot := range x.slots[s.start:s.end] {
		rules = append(rules, AddressRule{
			Prefix: prefix, Port: slot.port, TCP: slot.by[TCP] != 0, UDP: slot.by[UDP] != 0, ICMP: slot.by[ICMP] != 0,
		})
	}
	return rules
}
