package policy

import "net/netip"

// The DNS query types that rules name (RFC 1035 section 3.2.2 and the IANA
// registry of resource record types).
const (
	qtypeA     = 1
	qtypeMD    = 3
	qtypeMF    = 4
	qtypeCNAME = 5
	qtypeMB    = 7
	qtypeMG    = 8
	qtypeMR    = 9
	qtypeNULL  = 10
	qtypeWKS   = 11
	qtypeMINFO = 14
	qtypeX25   = 19
	qtypeISDN  = 20
	qtypeRT    = 21
	qtypeNSAP  = 22
	qtypeNSAPP = 23
	qtypeSIG   = 24
	qtypeKEY   = 25
	qtypePX    = 26
	qtypeGPOS  = 27
	qtypeAAAA  = 28
	qtypeNXT   = 30
	qtypeEID   = 31
	qtypeNIM   = 32
	qtypeSRV   = 33
	qtypeATMA  = 34
	qtypeA6    = 38
	qtypeSINK  = 40
	qtypeAPL   = 42
	qtypeSVCB  = 64
	qtypeHTTPS = 65
	qtypeSPF   = 99
	qtypeUINFO = 100
	qtypeUID   = 101
	qtypeGID   = 102
	qtypeUNSPC = 103
	qtypeTKEY  = 249
	qtypeTSIG  = 250
	qtypeIXFR  = 251
	qtypeAXFR  = 252
	qtypeMAILB = 253
	qtypeMAILA = 254
	qtypeANY   = 255
)

// decideQuestion judges a DNS question by the same steps; those about bytes and
// destinations do not apply to it.
func (c *Compiled) decideQuestion(r Request) Decision {
	// 1
	if text, denied := c.deniedName(r.Name, wantWhole, 0, TCP); denied {
		return c.deny(ReasonDenied, text)
	}
	// 2
	switch c.mode {
	case ModePublic:
		return c.allow(ReasonMode, "")
	case ModeNoNetwork:
		return c.deny(ReasonMode, "")
	case ModeAllowlist, ModeDenylist:
	}
	// 3: a whole family opens every name; with nothing left to protect, at any type.
	if r.Name != "" {
		if id := c.allowed.family(wantHost, 0, TCP); id != 0 {
			return c.allow(ReasonRule, c.allowed.rules[id].text)
		}
	}
	// 4, 5
	switch r.Finding {
	case FindingNone, FindingNoServerName, FindingECH:
	case FindingTimeout:
		return c.deny(ReasonLimit, "")
	case FindingMismatch:
		return c.deny(ReasonNameMismatch, "")
	case FindingMalformed:
		return c.deny(ReasonMalformed, "")
	default:
		return c.deny(ReasonMalformed, "")
	}
	// 7
	if c.mode == ModeDenylist {
		return c.allow(ReasonMode, "")
	}
	// 8
	id := c.allowed.name(r.Name, wantHost, 0, TCP)
	if id == 0 {
		return c.deny(ReasonUnlisted, "")
	}
	rule := &c.allowed.rules[id]
	if !answers(c.allowed.target(id).Wildcard, r.QType) {
		return c.deny(ReasonQueryType, rule.text)
	}
	return c.allow(ReasonRule, rule.text)
}

// answers says whether a name target opens questions of a type. Under a wildcard
// the agent chooses the name, so that a type that carries text is a tunnel.
func answers(wildcard bool, qtype uint16) bool {
	if wildcard {
		switch qtype {
		case qtypeA, qtypeAAAA, qtypeHTTPS, qtypeSVCB, qtypeSRV, qtypeCNAME:
			return true
		}
		return false
	}
	switch qtype {
	case 0, qtypeANY, qtypeAXFR, qtypeIXFR, qtypeNULL,
		// Meta types, which are not asked for as data.
		qtypeTKEY, qtypeTSIG,
		// Obsolete, deprecated or experimental: RFC 1035 (MD, MF, MB, MG, MR,
		// WKS, MINFO, MAILA, MAILB), RFC 9619's neighbours in the registry.
		qtypeMD, qtypeMF, qtypeMB, qtypeMG, qtypeMR, qtypeWKS, qtypeMINFO, qtypeMAILA, qtypeMAILB,
		qtypeX25, qtypeISDN, qtypeRT, qtypeNSAP, qtypeNSAPP, qtypeSIG, qtypeKEY, qtypePX, qtypeGPOS,
		qtypeNXT, qtypeEID, qtypeNIM, qtypeATMA, qtypeA6, qtypeSINK, qtypeAPL,
		qtypeSPF, qtypeUINFO, qtypeUID, qtypeGID, qtypeUNSPC:
		return false
	}
	return true
}

// DecideAddress judges one address that name resolved to, for a connection or a
// DNS answer that Decide allowed by name already. Port 0 is a DNS answer, whose
// port is not known; then p is not looked at. pinned says that the operator
// pinned the name (--add-host).
func (c *Compiled) DecideAddress(name string, addr netip.Addr, port uint16, p Protocol, pinned bool) Decision {
	name, addr = trimDot(name), addr.Unmap()
	if !addr.IsValid() || addr.Zone() != "" {
		return c.deny(ReasonSpecialAddress, "")
	}
	// A DNS answer is denied by what shuts the address altogether, as a question
	// is: the address is still needed for what is left open.
	deniedBy, allowedBy, privateBy := wantMatch, wantMatch, wantPrivate
	if port == 0 {
		deniedBy, allowedBy, privateBy = wantWhole, wantHost, wantHostPrivate
	}
	if text, denied := c.deniedAddr(addr, deniedBy, port, p); denied {
		return c.deny(ReasonDenied, text)
	}
	switch c.mode {
	case ModePublic:
		return c.allow(ReasonMode, "")
	case ModeDenylist:
		return c.denylistAddress(addr, pinned)
	case ModeAllowlist:
	case ModeNoNetwork:
		return c.deny(ReasonMode, "")
	default:
		return c.deny(ReasonMode, "")
	}
	if id := c.allowed.addr(addr, allowedBy, port, p); id != 0 {
		return c.allow(ReasonRule, c.allowed.rules[id].text)
	}
	id := c.allowed.name(name, allowedBy, port, p)
	switch class := ClassOf(addr); {
	case class == Private:
		lifted := c.allowed.name(name, privateBy, port, p)
		if lifted == 0 {
			return c.deny(ReasonSpecialAddress, "")
		}
		id = lifted
	case class == Loopback && pinned:
	case class != Public:
		return c.deny(ReasonSpecialAddress, "")
	}
	if id == 0 {
		// The name came in by a whole-family target alone, and this address is of
		// the other family (or the caller did not ask Decide first).
		return c.deny(ReasonUnlisted, "")
	}
	return c.allow(ReasonRule, c.allowed.rules[id].text)
}

// denylistAddress refuses what leads back into the sandbox or to the metadata
// services. The unspecified address is not in the list of policy.md section 4,
// but connect(2) takes it for loopback, so that it is judged as loopback.
func (c *Compiled) denylistAddress(addr netip.Addr, pinned bool) Decision {
	switch ClassOf(addr) {
	case Loopback:
		if !pinned {
			return c.deny(ReasonSpecialAddress, "")
		}
	case Unspecified, LinkLocal, Metadata:
		return c.deny(ReasonSpecialAddress, "")
	case Public, Private, Multicast, Broadcast, Reserved:
	}
	return c.allow(ReasonMode, "")
}
