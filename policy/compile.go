package policy

import "net/netip"

// Options are what is compiled beside the document.
type Options struct {
	// Floor are the denied targets of the enforcement point: they hold in every
	// mode.
	Floor      []Target
	Generation uint64
}

// Compiled is an immutable policy, ready to decide; safe for concurrent use.
type Compiled struct {
	doc        Document
	floor      []Target
	generation uint64
}

// Compile builds the policy that enforces d.
func Compile(d Document, o Options) *Compiled {
	return &Compiled{doc: d, floor: o.Floor, generation: o.Generation}
}

// Decide judges one request. It does not allocate.
func (c *Compiled) Decide(r Request) Decision {
	return Decision{Reason: ReasonUnlisted, Generation: c.generation}
}

// DecideAddress judges one address that name resolved to, for a connection or a
// DNS answer that name already allowed. Port 0 is a DNS answer; pinned says that
// the operator pinned the name.
func (c *Compiled) DecideAddress(name string, addr netip.Addr, port uint16, p Protocol, pinned bool) Decision {
	return Decision{Reason: ReasonSpecialAddress, Generation: c.generation}
}

// Document is the document that was compiled.
func (c *Compiled) Document() Document { return c.doc }

// Floor is the floor that was compiled.
func (c *Compiled) Floor() []Target { return c.floor }

// Generation is the generation that decisions carry.
func (c *Compiled) Generation() uint64 { return c.generation }

// HoldsDeniedName says that a denied name is in force (carve-out, denylist or
// floor), so that TCP to allowed addresses must go through the proxy.
func (c *Compiled) HoldsDeniedName() bool { return true }

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

// AllowedAddresses are the address targets of allowed_hosts.
func (c *Compiled) AllowedAddresses() []AddressRule { return nil }

// DeniedAddresses are the address targets of denied_hosts and the floor.
func (c *Compiled) DeniedAddresses() []AddressRule { return nil }

// Opening is a port and protocol that an allowed name opens on the addresses
// handed out for it. Port 0 means every port.
type Opening struct {
	Port     uint16
	Protocol Protocol
}

// Openings are what an allowed name opens; none when it is not allowed.
func (c *Compiled) Openings(name string) []Opening { return nil }
