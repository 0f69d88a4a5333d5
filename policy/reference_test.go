package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// reference decides by reading policy.md section 3 aloud over plain lists. It
// shares no look-up with the compiled policy: only the types, and ClassOf, which
// has a table of its own.
type reference struct {
	document Document
	floor    []Target
}

type protocols struct{ tcp, udp, icmp bool }

// covers is section 2's rule for what a target's protocol means in a list.
func covers(t Target, denied bool) protocols {
	isName := t.Name != ""
	p := string(t.Proto)
	if p == "" && isName && !denied {
		p = "tcp"
	}
	switch p {
	case "tcp":
		return protocols{tcp: true}
	case "udp":
		return protocols{udp: true}
	}
	return protocols{tcp: true, udp: true, icmp: t.Port == 0 && (!isName || denied)}
}

func (p protocols) has(q Protocol) bool {
	return q == TCP && p.tcp || q == UDP && p.udp || q == ICMP && p.icmp
}

func matchesName(t Target, name string) bool {
	switch {
	case t.Name == "" || name == "":
		return false
	case t.Wildcard:
		return strings.HasSuffix(name, "."+t.Name)
	}
	return t.Name == name
}

func matchesAddr(t Target, addr netip.Addr) bool {
	return t.Name == "" && addr.IsValid() && t.Prefix.Contains(addr)
}

func matchesPort(t Target, port uint16, p Protocol) bool {
	return t.Port == 0 || p != ICMP && t.Port == port
}

func labels(t Target) int { return strings.Count(t.Name, ".") }

// best is the most specific of the targets that pass, and whether one does.
func best(list []Target, denied bool, passes func(Target) bool) (Target, bool) {
	var found []Target
	for _, t := range list {
		if passes(t) {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return Target{}, false
	}
	return slices.MinFunc(found, func(a, b Target) int { return moreSpecific(a, b, denied) }), true
}

// moreSpecific: exact before wildcard, longer wildcard before shorter, longer
// prefix before shorter, with port before without (the lowest); then, which the
// specification leaves open, IPv4, the narrower protocol, the shorter text.
func moreSpecific(a, b Target, denied bool) int {
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	width := func(t Target) int {
		c := covers(t, denied)
		return flag(c.tcp) + flag(c.udp)
	}
	return cmp.Or(
		flag(a.Wildcard)-flag(b.Wildcard),
		labels(b)-labels(a),
		b.Prefix.Bits()-a.Prefix.Bits(),
		flag(a.Port == 0)-flag(b.Port == 0),
		int(a.Port)-int(b.Port),
		flag(a.Prefix.Addr().Is6())-flag(b.Prefix.Addr().Is6()),
		width(a)-width(b),
		len(a.String())-len(b.String()),
		strings.Compare(a.String(), b.String()),
	)
}

func (ref reference) allowed() []Target {
	if ref.document.Mode == ModeAllowlist {
		return ref.document.Allowed
	}
	return nil
}

// denies is the rule by which the floor or denied_hosts deny what passes.
func (ref reference) denies(passes func(Target) bool) (string, bool) {
	if t, found := best(ref.floor, true, passes); found {
		return "floor:" + t.String(), true
	}
	t, found := best(ref.document.Denied, true, passes)
	return t.String(), found
}

func (ref reference) deniesName(name string, port uint16, p Protocol) (string, bool) {
	return ref.denies(func(t Target) bool {
		return matchesName(t, name) && matchesPort(t, port, p) && covers(t, true).has(p)
	})
}

func (ref reference) deniesQuestion(name string) (string, bool) {
	return ref.denies(func(t Target) bool {
		return matchesName(t, name) && t.Port == 0 && (t.Proto == "" || t.Proto == "any")
	})
}

// deniesAddr tries the address as it stands, then what it leads to.
func (ref reference) deniesAddr(addr netip.Addr, denies func(Target) bool) (string, bool) {
	forms := []netip.Addr{addr}
	if b := addr.AsSlice(); len(b) == 16 {
		switch text := addr.StringExpanded(); {
		case strings.HasPrefix(text, "2002:"):
			forms = append(forms, netip.AddrFrom4([4]byte(b[2:6])))
		case strings.HasPrefix(text, "2001:0000:"):
			forms = append(forms, netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
		case strings.HasPrefix(text, "0064:ff9b:0000:0000:0000:0000:"), strings.HasPrefix(text, "0064:ff9b:0001:"),
			strings.HasPrefix(text, "0000:0000:0000:0000:0000:0000:"), strings.Contains(text[20:], "0000:5efe:"), strings.Contains(text[20:], "0200:5efe:"):
			forms = append(forms, netip.AddrFrom4([4]byte(b[12:])))
		}
	}
	for _, form := range forms {
		rule, found := ref.denies(func(t Target) bool { return matchesAddr(t, form) && denies(t) })
		if found {
			return rule, true
		}
	}
	return "", false
}

func (ref reference) holdsDeniedName() bool {
	isName := func(t Target) bool { return t.Name != "" }
	return slices.ContainsFunc(ref.floor, isName) || slices.ContainsFunc(ref.document.Denied, isName)
}

func no(reason Reason, rule string) Decision { return Decision{Deny, rule, reason, 0} }

func yes(reason Reason, rule string) Decision { return Decision{Allow, rule, reason, 0} }

func wholeFamily(t Target) bool { return t.Name == "" && t.Prefix.Bits() == 0 }

func (ref reference) decide(r Request) Decision {
	if r.Kind == KindQuestion {
		return ref.question(r)
	}
	// 1
	if rule, found := ref.deniesName(r.Name, r.Port, r.Protocol); found {
		return no(ReasonDenied, rule)
	}
	if rule, found := ref.deniesAddr(r.Addr, func(t Target) bool {
		return matchesPort(t, r.Port, r.Protocol) && covers(t, true).has(r.Protocol)
	}); found {
		return no(ReasonDenied, rule)
	}
	// 2
	if ref.document.Mode == ModeNoNetwork {
		return no(ReasonMode, "")
	}
	opener, opened := ref.opener(r, true)
	if ref.holdsDeniedName() && !opened {
		if r.Protocol == UDP && r.Port == 443 {
			return no(ReasonProtocol, "")
		}
		if r.Name == "" && len(r.Attributed) > 0 {
			all := true
			for _, name := range r.Attributed {
				_, found := ref.deniesName(name, r.Port, r.Protocol)
				all = all && found
			}
			if all {
				rule, _ := ref.deniesName(r.Attributed[0], r.Port, r.Protocol)
				return no(ReasonDenied, rule)
			}
		}
	}
	if ref.document.Mode == ModePublic {
		return yes(ReasonMode, "")
	}
	// 3
	if opened {
		return yes(ReasonRule, opener.String())
	}
	// 4–6
	listed := func(name string, protocol bool) (Target, bool) {
		return best(ref.allowed(), false, func(t Target) bool {
			return matchesName(t, name) && matchesPort(t, r.Port, r.Protocol) && (!protocol || covers(t, false).has(r.Protocol))
		})
	}
	_, isListed := listed(r.Name, true)
	switch r.Finding {
	case FindingNone:
	case FindingMalformed:
		return no(ReasonMalformed, "")
	case FindingTimeout:
		return no(ReasonLimit, "")
	case FindingMismatch:
		return no(ReasonNameMismatch, "")
	case FindingNoServerName:
		return no(ReasonNoServerName, "")
	case FindingECH:
		if r.Name == "" {
			return no(ReasonNoServerName, "")
		}
		if ref.document.Mode == ModeAllowlist && !isListed && !slices.Contains(r.Attributed, r.Name) {
			return no(ReasonECH, "")
		}
	}
	// 7
	if ref.document.Mode == ModeDenylist {
		if r.Addr.IsValid() && ClassOf(r.Addr) == Metadata {
			return no(ReasonSpecialAddress, "")
		}
		return yes(ReasonMode, "")
	}
	// 8, 9
	for _, protocol := range []bool{true, false} {
		names := []string{r.Name}
		if r.Name == "" {
			names = r.Attributed
		}
		if t, found := ref.opener(r, protocol); found {
			return no(ReasonProtocol, t.String())
		}
		for _, name := range names {
			t, found := listed(name, protocol)
			if !found {
				continue
			}
			if _, denied := ref.deniesName(name, r.Port, r.Protocol); denied {
				continue
			}
			switch {
			case !protocol:
				return no(ReasonProtocol, t.String())
			case r.Name != "":
				return yes(ReasonRule, t.String())
			}
			return ref.attributed(r, t)
		}
	}
	// 10
	if r.Kind == KindConnection && r.Name == "" && !slices.ContainsFunc(r.Attributed, ref.answersName) {
		return no(ReasonNotAttributable, "")
	}
	return no(ReasonUnlisted, "")
}

// opener is the address target of step 3.
func (ref reference) opener(r Request, protocol bool) (Target, bool) {
	matches := func(t Target) bool {
		return matchesPort(t, r.Port, r.Protocol) && (!protocol || covers(t, false).has(r.Protocol))
	}
	if t, found := best(ref.allowed(), false, func(t Target) bool { return matchesAddr(t, r.Addr) && matches(t) }); found {
		return t, true
	}
	return best(ref.allowed(), false, func(t Target) bool { return r.Name != "" && wholeFamily(t) && matches(t) })
}

// answersName says that an allowed target matches the name, and no denied one
// denies it whole.
func (ref reference) answersName(name string) bool {
	_, found := best(ref.allowed(), false, func(t Target) bool { return matchesName(t, name) })
	_, denied := ref.deniesQuestion(name)
	return found && !denied
}

func (ref reference) attributed(r Request, first Target) Decision {
	switch ClassOf(r.Addr) {
	case Public, Loopback:
		return yes(ReasonRule, first.String())
	case Private:
		for _, name := range r.Attributed {
			if _, denied := ref.deniesName(name, r.Port, r.Protocol); denied {
				continue
			}
			if t, found := best(ref.allowed(), false, func(t Target) bool {
				return matchesName(t, name) && matchesPort(t, r.Port, r.Protocol) && covers(t, false).has(r.Protocol) && lifts(t)
			}); found {
				return yes(ReasonRule, t.String())
			}
		}
	}
	return no(ReasonSpecialAddress, "")
}

func lifts(t Target) bool {
	return t.Private || !t.Wildcard && t.Name != "" && !strings.Contains(t.Name, ".")
}

func (ref reference) question(r Request) Decision {
	if rule, found := ref.deniesQuestion(r.Name); found {
		return no(ReasonDenied, rule)
	}
	switch ref.document.Mode {
	case ModePublic:
		return yes(ReasonMode, "")
	case ModeNoNetwork:
		return no(ReasonMode, "")
	}
	if t, found := best(ref.allowed(), false, wholeFamily); found && r.Name != "" {
		return yes(ReasonRule, t.String())
	}
	if ref.document.Mode == ModeDenylist {
		return yes(ReasonMode, "")
	}
	t, found := best(ref.allowed(), false, func(t Target) bool { return matchesName(t, r.Name) })
	if !found {
		return no(ReasonUnlisted, "")
	}
	ofWildcard := map[uint16]bool{1: true, 28: true, 65: true}
	ofExact := map[uint16]bool{1: true, 28: true, 65: true, 16: true}
	if t.Wildcard && !ofWildcard[r.QType] || !t.Wildcard && !ofExact[r.QType] {
		return no(ReasonQueryType, t.String())
	}
	return yes(ReasonRule, t.String())
}

func (ref reference) decideAddress(name string, addr netip.Addr, port uint16, p Protocol, pinned bool) Decision {
	addr = addr.Unmap()
	if rule, found := ref.deniesAddr(addr, func(t Target) bool {
		if port == 0 {
			return t.Port == 0 && (t.Proto == "" || t.Proto == "any")
		}
		return matchesPort(t, port, p) && covers(t, true).has(p)
	}); found {
		return no(ReasonDenied, rule)
	}
	class := ClassOf(addr)
	switch ref.document.Mode {
	case ModePublic:
		return yes(ReasonMode, "")
	case ModeNoNetwork:
		return no(ReasonMode, "")
	case ModeDenylist:
		if class == Loopback && !pinned || class == Unspecified || class == LinkLocal || class == Metadata {
			return no(ReasonSpecialAddress, "")
		}
		return yes(ReasonMode, "")
	}
	open := func(t Target) bool {
		return port == 0 || matchesPort(t, port, p) && covers(t, false).has(p)
	}
	if t, found := best(ref.allowed(), false, func(t Target) bool { return matchesAddr(t, addr) && open(t) }); found {
		return yes(ReasonRule, t.String())
	}
	ofName := func(t Target) bool { return matchesName(t, name) && open(t) }
	t, found := best(ref.allowed(), false, ofName)
	switch {
	case class == Private:
		t, found = best(ref.allowed(), false, func(t Target) bool { return ofName(t) && lifts(t) })
		if !found {
			return no(ReasonSpecialAddress, "")
		}
	case class != Public && (class != Loopback || !pinned):
		return no(ReasonSpecialAddress, "")
	}
	if !found {
		return no(ReasonUnlisted, "")
	}
	return yes(ReasonRule, t.String())
}
