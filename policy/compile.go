package policy

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Options are what is compiled beside the document.
type Options struct {
	// Floor are the denied targets of the enforcement point: they hold in every
	// mode, and no document lifts them.
	Floor      []Target
	Generation uint64
}

// Compiled is a policy, ready to decide. It is immutable, and safe for
// concurrent use.
type Compiled struct {
	mode       Mode
	document   Document
	floorList  []Target
	generation uint64
	allowed    *index
	denied     *index
	floor      *index
	digests    [2][]uint64                // of the allowed targets and of the denied ones, see Differing
	ancestors  func() map[string]struct{} // made when first asked for
}

// Compile builds the policy that enforces d. A mode outside the four, the empty
// one included, is enforced as no-network; allowed targets count in an allowlist
// alone and denied ones in every mode, whatever a document made by hand says. The
// lists are kept, not copied (there may be a million of targets): they must not be
// changed any more.
func Compile(d Document, o Options) *Compiled {
	// Without room to spare, so that an append of a reader's never writes into what
	// is compiled.
	d.Allowed, d.Denied = slices.Clip(d.Allowed), slices.Clip(d.Denied)
	c := &Compiled{
		mode: d.Mode, document: d,
		floorList: slices.Clip(slices.Clone(o.Floor)), generation: o.Generation,
	}
	switch d.Mode {
	case ModePublic, ModeNoNetwork, ModeAllowlist, ModeDenylist:
	default:
		c.mode = ModeNoNetwork
	}
	var allowed []Target
	if c.mode == ModeAllowlist {
		allowed = d.Allowed
	}
	c.allowed = newIndex(allowed, allowedList, "")
	c.ancestors = sync.OnceValue(func() map[string]struct{} { return ancestorsOf(allowed) })
	c.denied = newIndex(d.Denied, deniedList, "")
	c.floor = newIndex(o.Floor, deniedList, "floor:")
	c.digests = [2][]uint64{digestsOf(d.Allowed), digestsOf(d.Denied)}
	return c
}

// Document is the document that was compiled. Its lists are shared, to be read
// alone.
func (c *Compiled) Document() Document { return c.document }

// Floor is the floor that was compiled: shared, to be read alone.
func (c *Compiled) Floor() []Target { return c.floorList }

// Generation is the generation that decisions carry.
func (c *Compiled) Generation() uint64 { return c.generation }

// HoldsDeniedName says that a denied name is in force (carve-out, denylist or
// floor), so that TCP to allowed addresses must go through the proxy.
func (c *Compiled) HoldsDeniedName() bool { return c.denied.holdsName() || c.floor.holdsName() }

// AddressRule is an address target as the kernel's sets hold it.
type AddressRule struct {
	Prefix netip.Prefix
	// Port 0 means every port. ICMP echo has no port: it is opened or shut by
	// rules of every port only.
	Port           uint16
	TCP, UDP, ICMP bool
	// Rule is the canonical text, with "floor:" before it where it is the floor's.
	Rule string
}

// AllowedAddresses are the address targets of an allowlist, in document order;
// none in the other modes, whose mode says all.
func (c *Compiled) AllowedAddresses() []AddressRule { return c.allowed.addressRules() }

// DeniedAddresses are the address targets of the floor and of denied_hosts, those
// of IPv4 also as the IPv6 addresses that lead there.
func (c *Compiled) DeniedAddresses() []AddressRule {
	denied := append(c.floor.addressRules(), c.denied.addressRules()...)
	for _, r := range denied {
		denied = append(denied, r.embeddings()...)
	}
	return denied
}

// Opening is a port and protocol that an allowed name opens on the addresses
// handed out for it. Port 0 means every port.
type Opening struct {
	Port     uint16
	Protocol Protocol
}

// Openings are what the name targets of an allowlist open on the addresses that
// the resolver hands out for name, less what is denied for the name; none when
// it is not allowed, and none in the other modes, which open nothing by name.
// (What a whole-family address target opens is in AllowedAddresses.) A carve-out
// of one port from an opening of every port cannot be written here: the proxy,
// which sees the name, holds it. Openings of UDP always have a port.
func (c *Compiled) Openings(name string) []Opening {
	name = strings.TrimSuffix(name, ".")
	var openings []Opening
	add := func(s span, found bool) {
		if !found {
			return
		}
		for _, slot := range c.allowed.slots[s.start:s.end] {
			for _, p := range [2]Protocol{TCP, UDP} {
				o := Opening{Port: slot.port, Protocol: p}
				if slot.by[p] != 0 && !slices.Contains(openings, o) && !c.shuts(name, o) {
					openings = append(openings, o)
				}
			}
		}
	}
	s, found := c.allowed.exact[name]
	add(s, found)
	for base := name; ; {
		dot := strings.IndexByte(base, '.')
		if dot < 0 {
			return openings
		}
		base = base[dot+1:]
		s, found := c.allowed.wild[base]
		add(s, found)
	}
}

// OpensUDP says that an opening of UDP for name holds on addr, which may be of a
// special class: the resolver hands it out for the sake of another port, or did
// under another policy. UDP goes straight out, and nobody looks at it after that;
// TCP comes to the proxy, which does (DecideAddress).
func (c *Compiled) OpensUDP(name string, addr netip.Addr, port uint16) bool {
	switch ClassOf(addr) {
	case Public:
		return true
	case Private:
		return c.allowed.name(trimDot(name), wantPrivate, port, UDP) != 0
	case Reserved, Loopback, Unspecified, LinkLocal, Metadata, Multicast, Broadcast:
	}
	return false
}

// shuts says that the opening is denied for the name as a whole.
func (c *Compiled) shuts(name string, o Opening) bool {
	if o.Protocol == UDP && o.Port == 443 && c.HoldsDeniedName() {
		return true // QUIC shows no name (policy.md section 3, step 2)
	}
	_, denied := c.deniedName(name, wantMatch, o.Port, o.Protocol)
	return denied
}
