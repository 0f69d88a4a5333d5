package policy

import (
	"fmt"
	"strings"
)

// Capabilities say what an enforcement point can hold (policy.md section 8). None
// implies another. A nil member could not be probed, which is a different answer
// from false.
type Capabilities struct {
	DisableInternet                   *bool `json:"disable_internet"`
	NetworkAllowlist                  *bool `json:"network_allowlist"`
	NetworkAllowlistHostnames         *bool `json:"network_allowlist_hostnames"`
	NetworkAllowlistWildcardHostnames *bool `json:"network_allowlist_wildcard_hostnames"`
	NetworkAllowlistIPv4Addresses     *bool `json:"network_allowlist_ipv4_addresses"`
	NetworkAllowlistIPv6Addresses     *bool `json:"network_allowlist_ipv6_addresses"`
	NetworkAllowlistIPv4CIDRs         *bool `json:"network_allowlist_ipv4_cidrs"`
	NetworkAllowlistIPv6CIDRs         *bool `json:"network_allowlist_ipv6_cidrs"`
	DynamicNetworkPolicy              *bool `json:"dynamic_network_policy"`
	NetworkDenylist                   *bool `json:"network_denylist"`
	TargetPorts                       *bool `json:"target_ports"`
	TargetUDP                         *bool `json:"target_udp"`
	ICMP                              *bool `json:"icmp"`
}

// Check says whether the document can be held whole. The error is an Errors with
// each capability that is needed and false, at the first target that needs it;
// the document must then be refused, not applied in part. Warnings are needs that
// could not be probed, and traffic that a bare address target merely implies and
// that will be denied. (The need of dynamic_network_policy is the caller's: it is
// about a swap, not about a document.)
func (c Capabilities) Check(d Document) (warnings []Problem, err error) {
	n := &needs{}
	switch d.Mode {
	case ModePublic:
		return nil, nil
	case ModeNoNetwork:
		n.add(c.DisableInternet, "disable_internet", "let nothing out", fieldMode, true)
	case ModeAllowlist:
		n.add(c.NetworkAllowlist, "network_allowlist", "hold an allowlist", fieldMode, true)
	case ModeDenylist:
		n.add(c.NetworkDenylist, "network_denylist", "hold a denylist", fieldMode, true)
	default:
		n.add(c.DisableInternet, "disable_internet", "let nothing out", fieldMode, true)
	}
	if d.Mode == ModeAllowlist && len(d.Denied) > 0 {
		n.add(c.NetworkDenylist, "network_denylist", "carve denied_hosts out of an allowlist", fieldDenied, true)
	}
	for i, t := range d.Allowed {
		c.target(n, t, fieldAllowed, i)
	}
	for i, t := range d.Denied {
		c.target(n, t, fieldDenied, i)
	}
	return n.result()
}

// target notes what one target needs. An enforcement point is asked for the kind
// of each denied target too: the list it stands in does not make it easier to hold.
func (c Capabilities) target(n *needs, t Target, list string, i int) {
	add := func(have *bool, name, what string, needed bool) { n.addAt(have, name, what, list, i, needed) }
	v4 := t.Prefix.Addr().Is4()
	switch {
	case t.Wildcard:
		add(c.NetworkAllowlistWildcardHostnames, "network_allowlist_wildcard_hostnames", "hold a wildcard name", true)
	case t.IsName():
		add(c.NetworkAllowlistHostnames, "network_allowlist_hostnames", "hold a name", true)
	case t.Prefix.IsSingleIP() && v4:
		add(c.NetworkAllowlistIPv4Addresses, "network_allowlist_ipv4_addresses", "hold an IPv4 address", true)
	case t.Prefix.IsSingleIP():
		add(c.NetworkAllowlistIPv6Addresses, "network_allowlist_ipv6_addresses", "hold an IPv6 address", true)
	case v4:
		add(c.NetworkAllowlistIPv4CIDRs, "network_allowlist_ipv4_cidrs", "hold an IPv4 range", true)
	default:
		add(c.NetworkAllowlistIPv6CIDRs, "network_allowlist_ipv6_cidrs", "hold an IPv6 range", true)
	}
	if t.Port != 0 {
		add(c.TargetPorts, "target_ports", "tell ports apart", true)
	}
	kind := allowedList
	if list == fieldDenied {
		kind = deniedList
	}
	covers := newRule(&t, kind, "")
	written := t.Proto != ProtocolUnset
	if covers.udp && (written || !t.IsName()) {
		add(c.TargetUDP, "target_udp", "hold UDP", written)
	}
	if covers.icmp && !t.IsName() {
		add(c.ICMP, "icmp", "hold ICMP echo", written)
	}
}

// needs collects what is needed, each capability once, in the order of need.
type needs struct{ list []need }

type need struct {
	have       *bool
	name, what string
	path       string
	count      int
	written    bool // written, not merely implied
}

func (n *needs) add(have *bool, name, what, path string, written bool) {
	if have != nil && *have {
		return
	}
	for i := range n.list {
		if n.list[i].name == name && n.list[i].written == written {
			n.list[i].count++
			return
		}
	}
	n.list = append(n.list, need{have: have, name: name, what: what, path: path, count: 1, written: written})
}

// addAt is add for a target, whose path is made only where it is missing something.
func (n *needs) addAt(have *bool, name, what, list string, i int, written bool) {
	if have == nil || !*have {
		n.add(have, name, what, atIndex(list, i), written)
	}
}

func (n *needs) result() (warnings []Problem, err error) {
	var problems Errors
	for _, need := range n.list {
		more := ""
		if need.count > 1 {
			more = fmt.Sprintf(" (here and in %d more places)", need.count-1)
		}
		switch {
		case need.have == nil:
			warnings = append(warnings, Problem{need.path, fmt.Sprintf("whether this enforcement point can %s could not be probed (%s)%s", need.what, need.name, more)})
		case need.written:
			problems = append(problems, Problem{need.path, fmt.Sprintf("this enforcement point cannot %s (%s is false)%s; nothing of the policy is applied", need.what, need.name, more)})
		default:
			warnings = append(warnings, Problem{need.path, fmt.Sprintf("this enforcement point cannot %s (%s is false), so that this part of what an address without a protocol allows or denies stays denied%s; write the protocol %q to say that it is not needed", need.what, need.name, more, ProtocolTCP)})
		}
	}
	if len(problems) > 0 {
		return warnings, problems
	}
	return warnings, nil
}

// join lists words for a message.
func join(words []string) string { return strings.Join(words, ", ") }
