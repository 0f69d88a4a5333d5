package firewall

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// revokeLocked ends the direct flows that the policy in force forbids: the rules
// stop their packets already; this tells their owners. TCP goes first, by its
// sockets, since a list of those comes in a fraction of the time that the
// connection table takes; then whatever the table holds.
func (f *Firewall) revokeLocked() ([]RevokedFlow, error) {
	quick, err := f.forbiddenSocketsLocked()
	if err == nil {
		err = f.endFlowsLocked(quick)
	}
	var rest []flow
	listErr := f.kernel.sock.directFlows(ctDirect, func(one flow) {
		if !f.survivesLocked(one) {
			rest = append(rest, one)
		}
	})
	if listErr == nil {
		listErr = f.endFlowsLocked(rest)
	}
	var revoked []RevokedFlow
	for _, one := range slices.Concat(quick, rest) {
		revoked = append(revoked, RevokedFlow{Local: one.local, Remote: one.remote, Protocol: one.protocol()})
	}
	return revoked, errors.Join(err, listErr)
}

// endFlowsLocked has the kernel forget each flow first, so that the resets of the
// dying sockets belong to none.
func (f *Firewall) endFlowsLocked(flows []flow) error {
	err := f.kernel.sock.deleteFlows(flows)
	if f.kernel.diag != nil {
		err = errors.Join(err, destroySockets(f.kernel.diag, flows))
	}
	return err
}

// quickLimit is how many sockets are looked up in the connection table one by one:
// of more, which are the proxy's for the most part, the table is read as a whole.
const quickLimit = 1000

// forbiddenSocketsLocked are the direct TCP flows of sockets in the namespace that
// the policy forbids. It finds none where there are too many to ask about.
func (f *Firewall) forbiddenSocketsLocked() ([]flow, error) {
	if f.kernel.diag == nil {
		return nil, nil
	}
	var forbidden []flow
	err := f.kernel.diag.openTCP(func(local, remote netip.AddrPort) {
		one := flow{local: local, remote: remote, proto: unix.IPPROTO_TCP}
		if !remote.Addr().IsLoopback() && !f.survivesLocked(one) {
			forbidden = append(forbidden, one)
		}
	})
	if err != nil || len(forbidden) > quickLimit {
		return nil, err
	}
	// Which of them go straight out, and are not ours, the mark says.
	return f.kernel.sock.withMark(forbidden, ctDirect)
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
