package dnsfilter

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/policy"
)

// viewOf gives the entry as p lets it be seen, building it once a policy.
func (s *Server) viewOf(e *entry, p *policy.Compiled) (*view, error) {
	if v := e.view.Load(); v != nil && v.policy == p {
		return v, nil
	}
	m, err := e.message()
	if err != nil {
		return nil, err
	}
	v, err := s.inspect(e, p, m)
	if err != nil {
		return nil, err
	}
	e.view.Store(v)
	return v, nil
}

// newView is a view that hands out no address.
func (s *Server) newView(p *policy.Compiled, d policy.Decision, o odd) *view {
	v := &view{verdict: s.verdict.Load()}
	if v.verdict == nil || v.policy != p || v.decision != d {
		v.verdict = &verdict{p, d}
		s.verdict.Store(v.verdict)
	}
	if o.dropped.IsValid() || o.note != "" || o.changed != nil || len(o.hints) > 0 {
		made := o // lest every view's be on the heap
		v.odd = &made
	}
	v.attributed.Store(nothingToAttribute)
	return v
}

// inspect judges an answer under p: the question, the names that its CNAMEs lead
// to, and each address. m is e's message and may be changed.
func (s *Server) inspect(e *entry, p *policy.Compiled, m *dns.Msg) (*view, error) {
	decision := judge(p, e.name, e.qtype)
	if decision.Verdict == policy.Deny {
		return s.newView(p, decision, odd{}), nil
	}
	if d, denied := deniedAlias(p, m.Answer); denied {
		return s.newView(p, d, odd{note: "an alias leads to a denied name"}), nil
	}
	c := checker{server: s, policy: p, entry: e}
	kept := m.Answer[:0]
	for _, rr := range m.Answer {
		if c.check(rr) {
			kept = append(kept, rr)
		}
	}
	if c.droppedRecords > 0 || c.droppedHints > 0 {
		c.odd.note = fmt.Sprintf("%d addresses kept back", c.droppedRecords+c.droppedHints)
	}
	if c.droppedRecords > 0 && c.keptRecords == 0 {
		c.odd.hints = nil
		return s.newView(p, c.first, c.odd), nil
	}
	if c.changed {
		m.Answer, m.Compress = kept, true
		packed, err := m.Pack()
		if err != nil {
			return nil, fmt.Errorf("pack the checked answer: %w", err)
		}
		changed, err := e.key().sectionsOf(packed)
		if err != nil {
			return nil, err
		}
		c.odd.changed = &changed
	}
	v := s.newView(p, decision, c.odd)
	if c.keptRecords > 0 || len(c.odd.hints) > 0 {
		v.attributed.Store(neverAttributed)
	}
	return v, nil
}

// deniedAlias says whether a CNAME leads to a name that denied_hosts or the
// floor holds. Being unlisted does not matter: chains are followed unjudged.
func deniedAlias(p *policy.Compiled, answer []dns.RR) (policy.Decision, bool) {
	for _, rr := range answer {
		cname, ok := rr.(*dns.CNAME)
		if !ok {
			continue
		}
		host, err := policy.ParseWireHost(strings.TrimSuffix(cname.Target, "."))
		if err != nil || host.Name == "" {
			continue // not a name that a target could be
		}
		d := p.Decide(policy.Request{Kind: policy.KindQuestion, Name: host.Name, QType: dns.TypeA})
		if d.Verdict == policy.Deny && d.Reason == policy.ReasonDenied {
			return d, true
		}
	}
	return policy.Decision{}, false
}

// checker judges the records of one answer.
type checker struct {
	server *Server
	policy *policy.Compiled
	entry  *entry
	odd    odd

	keptRecords, droppedRecords, droppedHints int
	changed                                   bool
	first                                     policy.Decision // of the first address dropped
}

// check says whether rr stays; a service binding may be changed.
func (c *checker) check(rr dns.RR) bool {
	var keep bool
	switch rr := rr.(type) {
	case *dns.A:
		_, keep = c.address(rr.A)
	case *dns.AAAA:
		_, keep = c.address(rr.AAAA)
	case *dns.HTTPS:
		c.binding(&rr.SVCB)
		return true
	case *dns.SVCB:
		c.binding(rr)
		return true
	default:
		return true
	}
	if keep {
		c.keptRecords++
	} else {
		c.droppedRecords++
		c.changed = true
	}
	return keep
}

// address says whether ip may be handed out.
func (c *checker) address(ip net.IP) (addr netip.Addr, allowed bool) {
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return addr, false
	}
	addr = addr.Unmap()
	d := c.server.decideAddress(c.policy, c.entry.name, addr, c.entry.pinned)
	if d.Verdict == policy.Allow {
		return addr, true
	}
	if !c.odd.dropped.IsValid() {
		c.odd.dropped, c.first = addr, d
	}
	return addr, false
}

// decideAddress judges an address for a DNS answer. The policy does not know which
// addresses are the sandbox's own; outside public mode those are special too.
func (s *Server) decideAddress(p *policy.Compiled, name string, addr netip.Addr, pinned bool) policy.Decision {
	d := p.DecideAddress(name, addr, 0, policy.TCP, pinned)
	if d.Verdict == policy.Allow && !pinned && s.cfg.Local(addr) && p.Mode() != policy.ModePublic {
		return policy.Decision{Rule: d.Rule, Reason: policy.ReasonSpecialAddress, Generation: d.Generation}
	}
	return d
}

// binding removes ech from a service binding (RFC 9460) and the hints that may
// not be handed out: clients dial hints without asking for addresses.
func (c *checker) binding(rr *dns.SVCB) {
	var removed []dns.SVCBKey
	kept := rr.Value[:0]
	for _, kv := range rr.Value {
		switch kv := kv.(type) {
		case *dns.SVCBECHConfig:
			removed = append(removed, dns.SVCB_ECHCONFIG)
			continue
		case *dns.SVCBIPv4Hint:
			if kv.Hint = c.hints(kv.Hint); len(kv.Hint) == 0 {
				removed = append(removed, dns.SVCB_IPV4HINT)
				continue
			}
		case *dns.SVCBIPv6Hint:
			if kv.Hint = c.hints(kv.Hint); len(kv.Hint) == 0 {
				removed = append(removed, dns.SVCB_IPV6HINT)
				continue
			}
		}
		kept = append(kept, kv)
	}
	rr.Value = kept
	if len(removed) == 0 {
		return
	}
	c.changed = true
	// A key that is mandatory but absent makes a record malformed (RFC 9460 section 8).
	rr.Value = slices.DeleteFunc(rr.Value, func(kv dns.SVCBKeyValue) bool {
		mandatory, ok := kv.(*dns.SVCBMandatory)
		if !ok {
			return false
		}
		mandatory.Code = slices.DeleteFunc(mandatory.Code, func(k dns.SVCBKey) bool { return slices.Contains(removed, k) })
		return len(mandatory.Code) == 0
	})
}

func (c *checker) hints(ips []net.IP) []net.IP {
	return slices.DeleteFunc(ips, func(ip net.IP) bool {
		if addr, allowed := c.address(ip); allowed {
			c.odd.hints = append(c.odd.hints, addr)
			return false
		}
		c.droppedHints++
		c.changed = true
		return true
	})
}
