package firewall

import (
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// revokeLocked ends the direct flows that the policy in force forbids: the rules
// stop their packets already; this tells their owners. The kernel forgets each
// flow first, so that the resets of the dying sockets belong to none.
func (f *Firewall) revokeLocked() ([]RevokedFlow, error) {
	var forbidden []flow
	err := f.kernel.sock.directFlows(ctDirect, func(one flow) {
		if !f.survivesLocked(one) {
			forbidden = append(forbidden, one)
		}
	})
	if err != nil {
		return nil, err
	}
	revoked := make([]RevokedFlow, len(forbidden))
	for i, one := range forbidden {
		revoked[i] = RevokedFlow{Local: one.local, Remote: one.remote, Protocol: one.protocol()}
	}
	err = f.kernel.sock.deleteFlows(forbidden)
	if f.kernel.diag != nil {
		err = errors.Join(err, destroySockets(f.kernel.diag, forbidden))
	}
	return revoked, err
}

func (f flow) protocol() policy.Protocol {
	switch f.proto {
	case unix.IPPROTO_TCP:
		return policy.TCP
	case unix.IPPROTO_UDP:
		return policy.UDP
	}
	return policy.ICMP
}

// survivesLocked says what the rules of judge say about an established flow.
func (f *Firewall) survivesLocked(one flow) bool {
	c := f.in.Policy
	if c == nil || f.in.Lockdown {
		return false
	}
	remote := one.remote.Addr()
	r := policy.Request{Kind: policy.KindPacket, Addr: remote, Port: one.remote.Port(), Protocol: one.protocol()}
	if r.Protocol == policy.UDP && deniesByName(c) {
		r.Attributed = slices.Collect(maps.Keys(f.seen[remote]))
	}
	switch d := c.Decide(r); {
	case d.Verdict == policy.Allow:
		// Where a name is denied, TCP of these modes has shown none (design.md,
		// promise 2).
		blind := d.Reason == policy.ReasonMode && r.Protocol == policy.TCP && c.HoldsDeniedName()
		return !blind
	case r.Protocol != policy.UDP || d.Reason == policy.ReasonDenied || d.Reason == policy.ReasonMode:
		return false
	case r.Port == 443 && c.HoldsDeniedName():
		return false
	}
	return f.openings[remote][policy.Opening{Port: r.Port, Protocol: policy.UDP}].After(f.now())
}
