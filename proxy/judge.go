//go:build linux

package proxy

import (
	"net/netip"
	"slices"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// subject is what is judged: a destination, what the client's bytes named, and
// what reading them brought to light.
type subject struct {
	kind    policy.Kind
	channel audit.Channel
	// name is the name that was shown, claimed the address that was shown in place
	// of one. Neither is set where the bytes name nothing.
	name    string
	claimed netip.Addr
	// dst is the destination that the client chose; invalid where it chose a name.
	dst        netip.Addr
	port       uint16
	finding    policy.Finding
	attributed []string
	client     netip.AddrPort
}

// verdict is the outcome for a subject, and for an allowed one where to dial.
type verdict struct {
	policy.Decision
	subject subject
	// direct is the one address to dial, or to dial first where name is set too.
	direct netip.Addr
	// name is the name to resolve and dial; its addresses are checked one by one.
	name string
	// opened says that an address target opened direct: it is not classified.
	opened bool
	// evidence is what a later policy judges again.
	evidence policy.Request
}

// judge decides s under c and works out what an allowed connection is dialled
// to (policy.md section 3): to the destination where an address target or public
// mode opens it, otherwise to what the resolver gives for the judged name.
func (p *Proxy) judge(c *policy.Compiled, s subject) verdict {
	if c == nil {
		return verdict{Decision: policy.Decision{Reason: policy.ReasonUnprotected}, subject: s}
	}
	if s.claimed.IsValid() {
		return p.judgeClaimed(c, s)
	}
	req := policy.Request{
		Kind: s.kind, Name: s.name, Addr: s.dst, Port: s.port, Protocol: policy.TCP,
		Finding: s.finding, Attributed: s.attributed,
	}
	v := verdict{Decision: c.Decide(req), subject: s, evidence: req}
	if v.Verdict != policy.Allow {
		return v
	}
	opened := s.dst.IsValid() && p.opens(c, s.dst, s.port)
	// Where all is allowed and no name is denied there is nothing to hold: it goes
	// where the client chose, by whatever hosts file.
	free := s.dst.IsValid() && v.Reason == policy.ReasonMode && !c.HoldsDeniedName()
	switch {
	case opened || free:
		return p.destination(c, v, s.dst, opened).named()
	case s.name != "":
		v.name = s.name
		if s.dst.IsValid() && slices.Contains(s.attributed, s.name) {
			// The resolver handed this very address out for the name.
			v.direct = s.dst
		}
		return v
	case v.Reason == policy.ReasonRule:
		return p.attributed(c, v)
	default:
		return p.destination(c, v, s.dst, false).named()
	}
}

// named gives what was allowed without a name the one that the resolver handed its
// address out for, so that the log of a public phase shows the name that an
// allowlist would need.
func (v verdict) named() verdict {
	if v.Verdict == policy.Allow && v.subject.name == "" && len(v.subject.attributed) > 0 && !v.opened {
		v.subject.name = v.subject.attributed[0]
	}
	return v
}

// judgeClaimed judges a connection that shows an address in place of a name: as
// that address, which must be its destination.
func (p *Proxy) judgeClaimed(c *policy.Compiled, s subject) verdict {
	req := policy.Request{
		Kind: s.kind, Name: s.claimed.String(), Addr: s.dst, Port: s.port, Protocol: policy.TCP, Finding: s.finding,
	}
	v := verdict{Decision: c.Decide(req), subject: s, evidence: req}
	if v.Verdict != policy.Allow {
		return v
	}
	dst := s.claimed
	if s.dst.IsValid() {
		dst = s.dst
	}
	return p.destination(c, v, dst, p.opens(c, dst, s.port))
}

// opens says that an address target allows addr, whatever is shown there.
func (p *Proxy) opens(c *policy.Compiled, addr netip.Addr, port uint16) bool {
	return opens(c, addr, port)
}

func opens(c *policy.Compiled, addr netip.Addr, port uint16) bool {
	d := c.Decide(policy.Request{Addr: addr, Port: port, Protocol: policy.TCP})
	if d.Verdict != policy.Allow || d.Reason != policy.ReasonRule {
		return false
	}
	return !unroutable(addr) || slices.ContainsFunc(c.AllowedAddresses(), func(r policy.AddressRule) bool {
		return r.TCP && (r.Port == 0 || r.Port == port) && meansUnroutable(r.Prefix, addr)
	})
}

// meansUnroutable says that a target was written for addr, one that is unroutable:
// 0.0.0.0/0 means the internet, not what listens on our own loopback (in the sealed
// shape, the host's).
func meansUnroutable(target netip.Prefix, addr netip.Addr) bool {
	class := policy.ClassOf(addr)
	return target.Contains(addr.Unmap()) && policy.ClassOf(target.Masked().Addr()) == class && policy.ClassOf(lastOf(target)) == class
}

// lastOf is the last address of a range.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// destination dials addr as it is. What is ours is never dialled (bypass B37),
// and loopback (in the sealed shape, the host's) only for an address target.
func (p *Proxy) destination(c *policy.Compiled, v verdict, addr netip.Addr, opened bool) verdict {
	if p.cfg.Local(addr) || !opened && unroutable(addr) {
		return v.deny(policy.Decision{Reason: policy.ReasonSpecialAddress, Generation: c.Generation()})
	}
	v.direct, v.opened = addr, opened
	return v
}

// attributed dials the destination of a connection that names nothing, for the
// most recent of its names that is allowed there.
func (p *Proxy) attributed(c *policy.Compiled, v verdict) verdict {
	refused := policy.Decision{Reason: policy.ReasonNotAttributable, Generation: c.Generation()}
	if unroutable(v.subject.dst) {
		refused.Reason = policy.ReasonSpecialAddress
	}
	for _, name := range v.subject.attributed {
		d := c.Decide(policy.Request{Name: name, Port: v.subject.port, Protocol: policy.TCP})
		if d.Verdict != policy.Allow {
			continue
		}
		if d = p.checkAddress(c, name, v.subject.dst, v.subject.port); d.Verdict != policy.Allow {
			refused = d
			continue
		}
		v.direct = v.subject.dst
		v.subject.name = name
		return v
	}
	return v.deny(refused)
}

// checkAddress judges one address that name was resolved to.
func (p *Proxy) checkAddress(c *policy.Compiled, name string, addr netip.Addr, port uint16) policy.Decision {
	pinned := p.cfg.Pinned(name)
	if p.cfg.Local(addr) && !pinned || unroutable(addr) && !pinned && !p.opens(c, addr, port) {
		return policy.Decision{Reason: policy.ReasonSpecialAddress, Generation: c.Generation()}
	}
	return c.DecideAddress(name, addr, port, policy.TCP, pinned)
}

func (v verdict) deny(d policy.Decision) verdict {
	return verdict{Decision: d, subject: v.subject, evidence: v.evidence}
}

// unroutable are the destinations that mean this host, or no one host.
func unroutable(addr netip.Addr) bool {
	switch policy.ClassOf(addr) {
	case policy.Loopback, policy.Unspecified, policy.Multicast, policy.Broadcast:
		return true
	case policy.Public, policy.Private, policy.LinkLocal, policy.Metadata, policy.Reserved:
	}
	return false
}

// event records e; its decision id is what the client is told.
func (p *Proxy) event(e audit.Event) audit.Event { return p.cfg.Log.Record(e) }

// record logs the decision of v and gives its id.
func (p *Proxy) record(v verdict) string {
	s := v.subject
	addr := v.direct
	if !addr.IsValid() {
		addr = s.dst
	}
	if s.claimed.IsValid() {
		addr = s.claimed
	}
	e := p.event(audit.Event{
		Kind: audit.KindDecision, Verdict: v.Verdict, Reason: v.Reason, Rule: v.Rule, Generation: v.Generation,
		Channel: s.channel, Name: s.name, Addr: addr, Port: s.port, Protocol: policy.TCP, Client: s.client,
	})
	return e.DecisionID
}

// failed logs that an allowed connection could not be made: never a denial.
func (p *Proxy) failed(v verdict, id string, err error) {
	s := v.subject
	p.event(audit.Event{
		Kind: audit.KindError, DecisionID: id, Error: failureOf(err).word, Message: err.Error(),
		Generation: v.Generation, Channel: s.channel, Name: s.name, Addr: v.direct, Port: s.port, Protocol: policy.TCP,
		Client: s.client,
	})
}

func (p *Proxy) lifecycle(message string) {
	p.event(audit.Event{Kind: audit.KindLifecycle, Message: "proxy: " + message})
}
