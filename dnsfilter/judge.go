package dnsfilter

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// judge is the decision on a question: policy's, and that no meta-type (RFC 6895
// section 3.1: 0, OPT and 128 to 255) is ever asked upstream, whatever the mode.
func judge(p *policy.Compiled, name string, qtype uint16) policy.Decision {
	d := p.Decide(policy.Request{Kind: policy.KindQuestion, Name: name, QType: qtype})
	if d.Verdict == policy.Allow && (qtype == dns.TypeNone || qtype == dns.TypeOPT || qtype>>7 == 1) {
		d.Verdict, d.Reason = policy.Deny, policy.ReasonQueryType
	}
	return d
}

// errAddressName is why an address in a question is refused even where the policy
// allows the address: it is never handed to a resolver (bypass B60).
var errAddressName = errors.New("an address, not a name")

// name reads the question's name. A malformed one is a denial that err explains;
// an address in disguise is judged as that address, and refused.
func (q *question) name(p *policy.Compiled) (string, policy.Decision, error) {
	malformed := policy.Decision{Reason: policy.ReasonMalformed, Generation: p.Generation()}
	if len(q.lower) == 0 {
		return ".", policy.Decision{Verdict: policy.Allow}, nil
	}
	text := string(q.lower)
	host, err := policy.ParseWireHost(text)
	switch {
	case err != nil:
		return text, malformed, err
	case host.Addr.IsValid():
		d := p.Decide(policy.Request{Kind: policy.KindAsk, Addr: host.Addr})
		if d.Verdict == policy.Deny {
			return text, d, errAddressName
		}
		return text, malformed, errAddressName
	case host.Name != text:
		return text, malformed, fmt.Errorf("reads as %q", host.Name)
	}
	return text, policy.Decision{Verdict: policy.Allow}, nil
}

// outcome is what became of a question: its decision and what goes with it.
type outcome struct {
	name     string
	decision policy.Decision
	addr     netip.Addr // the one that decided, or none
	note     string
	// rcode, where not zero, is how a message that is no good question is refused.
	rcode int
}

// record logs the outcome and gives the event back, with its ids.
func (s *Server) record(q *question, o *outcome) audit.Event {
	return s.cfg.Log.Record(audit.Event{
		Kind:       audit.KindDecision,
		Verdict:    o.decision.Verdict,
		Reason:     o.decision.Reason,
		Rule:       o.decision.Rule,
		Generation: o.decision.Generation,
		Channel:    audit.ChannelDNS,
		Name:       o.name,
		Addr:       o.addr,
		Protocol:   protocolOf(q.from),
		QType:      typeWord(q.qtype),
		Message:    o.note,
		Client:     clientAt(q.from),
	})
}

// deny logs a denial and says how it is answered: NXDOMAIN, or NODATA where the
// name exists as far as the sandbox may know (it has records of other types, or
// allowed names lie below it: RFC 8020 resolvers would cut those off).
func (s *Server) deny(p *policy.Compiled, q *question, o *outcome) reply {
	r := denialOf(p, o)
	r.edeID = s.record(q, o).DecisionID
	return r
}

// denialOf is the answer of a denial, but for the id of its event.
func denialOf(p *policy.Compiled, o *outcome) reply {
	r := reply{
		answer:  answer{dns.RcodeNameError, denialSOA},
		hasEDE:  true,
		edeCode: dns.ExtendedErrorCodeBlocked, // 15
		edeText: "exeat: denied, reason " + string(o.decision.Reason) + ", decision ",
	}
	switch {
	case o.rcode != 0:
		r.answer = answer{rcode: o.rcode}
	case o.decision.Reason == policy.ReasonQueryType,
		o.addr.IsValid(),
		p != nil && o.name != "" && p.HasAllowedBelow(o.name):
		r.rcode = dns.RcodeSuccess
	}
	return r
}

// malformed denies a message that does not parse.
func (s *Server) malformed(q *question, f *fault) reply {
	o := outcome{note: f.text, rcode: f.rcode}
	o.decision.Reason = policy.ReasonMalformed
	if p := s.cfg.Policy.Load(); p != nil {
		o.decision.Generation = p.Generation()
	}
	if len(q.wire) > 0 {
		o.name = string(q.lower)
	}
	return s.deny(nil, q, &o)
}

// fail answers a question that was allowed and could not be answered. It is not
// a denial: SERVFAIL, the cause as EDE 22 or 23, and an error in the log.
func (s *Server) fail(q *question, o *outcome, err error) reply {
	event := s.record(q, o)
	event = s.cfg.Log.Record(audit.Event{
		Kind:       audit.KindError,
		DecisionID: event.DecisionID,
		Generation: o.decision.Generation,
		Channel:    audit.ChannelDNS,
		Name:       o.name,
		Protocol:   protocolOf(q.from),
		QType:      typeWord(q.qtype),
		Error:      audit.ErrorUnresolvable,
		Message:    err.Error(),
		Client:     clientAt(q.from),
	})
	code := dns.ExtendedErrorCodeNetworkError
	var upstream *upstreamError
	if errors.As(err, &upstream) {
		code = upstream.ede
	}
	return reply{
		answer: answer{rcode: dns.RcodeServerFailure}, hasEDE: true, edeCode: code,
		edeText: "exeat: upstream failed, decision ", edeID: event.DecisionID,
	}
}
