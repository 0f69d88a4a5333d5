package policy

import (
	"net/netip"
	"slices"
)

// Decide judges one request by the eleven steps of policy.md section 3, whose
// numbers the comments repeat. It is a pure function of the compiled policy and
// the request, and does not allocate.
func (c *Compiled) Decide(r Request) Decision {
	r.Addr = r.Addr.Unmap()
	if r.Kind == KindQuestion {
		r.Name = trimDot(r.Name)
		return c.decideQuestion(r)
	}
	r, named := addressInName(r)
	// 1
	if text, denied := c.deniedRequest(r); denied {
		return c.deny(ReasonDenied, text)
	}
	if text, denied := c.deniedAddr(named, wantMatch, r.Port, r.Protocol); denied {
		return c.deny(ReasonDenied, text)
	}
	// 2
	if c.mode == ModeNoNetwork {
		return c.deny(ReasonMode, "")
	}
	opener := c.addressOpens(r)
	if d, decided := c.beforeMode(r, opener); decided {
		return d
	}
	if c.mode == ModePublic {
		return c.allow(ReasonMode, "")
	}
	// 3
	if opener != 0 {
		return c.allow(ReasonRule, c.allowed.rules[opener].text)
	}
	// 4, 5, 6
	if reason, found := c.finding(r); found {
		return c.deny(reason, "")
	}
	// 7
	if c.mode == ModeDenylist {
		if r.Addr.IsValid() && ClassOf(r.Addr) == Metadata {
			return c.deny(ReasonSpecialAddress, "")
		}
		return c.allow(ReasonMode, "")
	}
	return c.decideByName(r)
}

func (c *Compiled) allow(reason Reason, rule string) Decision {
	return Decision{Verdict: Allow, Rule: rule, Reason: reason, Generation: c.generation}
}

func (c *Compiled) deny(reason Reason, rule string) Decision {
	return Decision{Verdict: Deny, Rule: rule, Reason: reason, Generation: c.generation}
}

// trimDot lets a name that a caller did not normalise match all the same, for a
// denied name must not be dodged by a dot.
func trimDot(name string) string {
	if name != "" && name[len(name)-1] == '.' {
		return name[:len(name)-1]
	}
	return name
}

// addressInName judges a name that is an address as that address, which it
// returns too. Where the request has another destination, its parts disagree:
// neither can stand for the other, so that only a target for the destination lets
// it out, and a denial of either holds.
func addressInName(r Request) (Request, netip.Addr) {
	r.Name = trimDot(r.Name)
	if r.Name == "" || !endsInNumber(r.Name) && !isBracketed(r.Name) {
		return r, netip.Addr{}
	}
	host, err := ParseWireHost(r.Name)
	switch {
	case err != nil:
		r.Finding = FindingMalformed
	case !r.Addr.IsValid():
		r.Addr = host.Addr
	case r.Addr != host.Addr && r.Finding == FindingNone:
		r.Finding = FindingMismatch
	}
	r.Name = ""
	return r, host.Addr
}

// isBracketed says that a name can only be an IPv6 address.
func isBracketed(name string) bool {
	for i := range len(name) {
		if name[i] == ':' || name[i] == '[' {
			return true
		}
	}
	return false
}

// deniedName finds the denied target that matches a name. The floor is reported
// first: it is what no swap lifts.
func (c *Compiled) deniedName(name string, w want, port uint16, p Protocol) (string, bool) {
	if id := c.floor.name(name, w, port, p); id != 0 {
		return c.floor.rules[id].text, true
	}
	if id := c.denied.name(name, w, port, p); id != 0 {
		return c.denied.rules[id].text, true
	}
	return "", false
}

// deniedAddr says that the floor or denied_hosts deny an address, itself or as
// another that it leads to.
func (c *Compiled) deniedAddr(addr netip.Addr, w want, port uint16, p Protocol) (string, bool) {
	if id := c.floor.addr(addr, w, port, p); id != 0 {
		return c.floor.rules[id].text, true
	}
	if id := c.denied.addr(addr, w, port, p); id != 0 {
		return c.denied.rules[id].text, true
	}
	forms, n := embedded(addr)
	for _, v4 := range forms[:n] {
		if text, denied := c.deniedAddr(v4, w, port, p); denied {
			return text, true
		}
	}
	return "", false
}

// deniedRequest is step 1: denied when the name or the address is.
func (c *Compiled) deniedRequest(r Request) (string, bool) {
	if text, denied := c.deniedName(r.Name, wantMatch, r.Port, r.Protocol); denied {
		return text, true
	}
	return c.deniedAddr(r.Addr, wantMatch, r.Port, r.Protocol)
}

// addressOpens is the address target that lets the request out: one for its
// destination, or one for a whole family, which lets every name out too.
func (c *Compiled) addressOpens(r Request) ruleID { return c.byAddress(r, wantMatch) }

func (c *Compiled) byAddress(r Request, w want) ruleID {
	if id := c.allowed.addr(r.Addr, w, r.Port, r.Protocol); id != 0 {
		return id
	}
	if r.Name != "" {
		return c.allowed.family(w, r.Port, r.Protocol)
	}
	return 0
}

// beforeMode is the rest of step 2: what must not go round a denied name.
func (c *Compiled) beforeMode(r Request, opener ruleID) (Decision, bool) {
	if opener != 0 || !c.HoldsDeniedName() {
		return Decision{}, false
	}
	if r.Protocol == UDP && r.Port == 443 {
		return c.deny(ReasonProtocol, ""), true
	}
	if r.Name != "" || len(r.Attributed) == 0 {
		return Decision{}, false
	}
	first := ""
	for i, name := range r.Attributed {
		text, denied := c.deniedName(name, wantMatch, r.Port, r.Protocol)
		if !denied {
			return Decision{}, false
		}
		if i == 0 {
			first = text
		}
	}
	return c.deny(ReasonDenied, first), true
}

// finding is steps 4 to 6.
func (c *Compiled) finding(r Request) (Reason, bool) {
	switch r.Finding {
	case FindingNone:
		return "", false
	case FindingMalformed:
		return ReasonMalformed, true
	case FindingTimeout:
		return ReasonLimit, true
	case FindingMismatch:
		return ReasonNameMismatch, true
	case FindingNoServerName:
		return ReasonNoServerName, true
	case FindingECH:
		if r.Name == "" {
			return ReasonNoServerName, true
		}
		// Outside an allowlist nothing is unlisted, and a denied outer name has
		// been denied in step 1.
		unlisted := c.mode == ModeAllowlist && c.allowed.name(r.Name, wantMatch, r.Port, r.Protocol) == 0
		return ReasonECH, unlisted && !slices.Contains(r.Attributed, r.Name)
	}
	return ReasonMalformed, true // a finding that nobody defined denies
}

// decideByName is steps 8 to 11, in an allowlist.
func (c *Compiled) decideByName(r Request) Decision {
	// 8
	if r.Name != "" {
		if id := c.allowed.name(r.Name, wantMatch, r.Port, r.Protocol); id != 0 {
			return c.allow(ReasonRule, c.allowed.rules[id].text)
		}
	} else if id := c.attributed(r, wantMatch); id != 0 {
		return c.attributedAddress(r, id)
	}
	// 9
	if id := c.byAddress(r, wantPort); id != 0 {
		return c.deny(ReasonProtocol, c.allowed.rules[id].text)
	}
	if r.Name != "" {
		if id := c.allowed.name(r.Name, wantPort, r.Port, r.Protocol); id != 0 {
			return c.deny(ReasonProtocol, c.allowed.rules[id].text)
		}
	} else if id := c.attributed(r, wantPort); id != 0 {
		return c.deny(ReasonProtocol, c.allowed.rules[id].text)
	}
	// 10
	if r.Kind == KindConnection && r.Name == "" {
		if c.attributed(r, wantHost) == 0 {
			return c.deny(ReasonNotAttributable, "")
		}
	}
	// 11
	return c.deny(ReasonUnlisted, "")
}

// attributed finds the first of the names for which the resolver handed out the
// destination that an allowed target matches. A name that is denied on that port
// and protocol allows nothing.
func (c *Compiled) attributed(r Request, w want) ruleID {
	deniedBy := wantMatch
	if w == wantHost {
		deniedBy = wantWhole
	}
	for _, name := range r.Attributed {
		id := c.allowed.name(name, w, r.Port, r.Protocol)
		if id == 0 {
			continue
		}
		if _, denied := c.deniedName(name, deniedBy, r.Port, r.Protocol); !denied {
			return id
		}
	}
	return 0
}

// attributedAddress is the address class of step 8: an attribution may be older
// than the policy, whose private is gone since. Loopback can be attributed only
// where the operator pinned the name, which the dial checks again (DecideAddress).
func (c *Compiled) attributedAddress(r Request, id ruleID) Decision {
	switch ClassOf(r.Addr) {
	case Public, Loopback:
		return c.allow(ReasonRule, c.allowed.rules[id].text)
	case Private:
		if lifted := c.attributed(r, wantPrivate); lifted != 0 {
			return c.allow(ReasonRule, c.allowed.rules[lifted].text)
		}
	case Reserved, Unspecified, LinkLocal, Metadata, Multicast, Broadcast:
	}
	return c.deny(ReasonSpecialAddress, "")
}
