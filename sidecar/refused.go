//go:build linux

package sidecar

import (
	"fmt"
	"net/netip"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// Refusal is a packet that the kernel refused before anything of it was read.
type Refusal struct {
	Addr     netip.Addr
	Port     uint16
	Protocol policy.Protocol
	// Lost is how many refusals before this one came too fast to be told.
	Lost uint64
}

// Refused records what the kernel refused, with the reason that the policy in
// force gives for it.
func (s *Sidecar) Refused(r Refusal) {
	event := audit.Event{
		Kind: audit.KindDecision, Channel: audit.ChannelPacket, Reason: policy.ReasonUnprotected,
		Addr: r.Addr, Port: r.Port, Protocol: r.Protocol,
	}
	names := s.names.Names(r.Addr)
	if c := s.inForce.Load(); c != nil {
		d := c.Decide(policy.Request{
			Kind: policy.KindPacket, Addr: r.Addr, Port: r.Port, Protocol: r.Protocol, Attributed: names,
		})
		event.Reason, event.Rule, event.Generation = d.Reason, d.Rule, d.Generation
		if d.Verdict == policy.Allow {
			// The policy has nothing against it: this shape cannot carry the protocol,
			// or the packet met the ruleset of the policy before.
			event.Reason, event.Rule = policy.ReasonUnlisted, ""
			if r.Protocol != policy.TCP {
				event.Reason = policy.ReasonProtocol
			}
		}
	}
	if len(names) > 0 {
		event.Name = names[0]
	}
	s.log.Record(event)
	if r.Lost > 0 {
		s.log.Record(audit.Event{
			Kind: audit.KindLifecycle, Message: fmt.Sprintf("%d refused packets came too fast to be logged", r.Lost),
		})
	}
}
