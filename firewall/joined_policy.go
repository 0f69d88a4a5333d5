package firewall

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// direction says which end of a packet is the remote one.
type direction bool

const (
	outgoing direction = false // the destination
	incoming direction = true  // the source
)

func (j *joined) in(d direction, set Set, proto uint8) Statement {
	if d == incoming {
		return FromSet(set, proto)
	}
	return InSet(set, proto)
}

// listed are rules for packets of a protocol (0: TCP and UDP) whose remote end
// an address target of the list covers.
func (j *joined) listed(d direction, list string, proto uint8, more ...Statement) []Rule {
	var rules []Rule
	for _, f := range families() {
		for _, s := range []Set{f.hostSet(list), f.anySet(list), f.netSet(list)} {
			rules = append(rules, with(j.inPorts(d, s, proto), more...))
		}
	}
	return rules
}

// inPorts looks TCP or UDP up in a set, with a port or without.
func (j *joined) inPorts(d direction, s Set, proto uint8) []Statement {
	switch {
	case proto == 0:
		return []Statement{TCPorUDP(), j.in(d, s, 0)}
	case slices.Contains(s.Fields, FieldPort):
		return []Statement{j.in(d, s, proto)}
	}
	return []Statement{L4(proto), j.in(d, s, 0)}
}

// listedPing is listed for echo, which has no port: the range's ports are all.
func (j *joined) listedPing(d direction, list string, more ...Statement) []Rule {
	var rules []Rule
	for _, f := range families() {
		echo, reply := ICMPType(icmpEcho), ICMPType(0)
		if !f.v4 {
			echo, reply = ICMPv6Type(icmp6Echo), ICMPv6Type(icmp6Echo+1)
		}
		match := []Statement{echo}
		if d == incoming {
			match = []Statement{reply}
		}
		rules = append(rules,
			with(match, append([]Statement{j.in(d, f.anySet(list), 0)}, more...)...),
			with(match, append([]Statement{j.in(d, f.netSet(list), f.icmp)}, more...)...))
	}
	return rules
}

// resolvers are rules for packets to (or from) a resolver that an address
// target with port 53 opened.
func (j *joined) resolvers(d direction, more ...Statement) []Rule {
	var rules []Rule
	for _, f := range families() {
		rules = append(rules, with([]Statement{TCPorUDP(), j.in(d, f.dnsSet(), 0)}, more...))
	}
	return rules
}

// shut are rules for UDP that is denied by the names of its address.
func (j *joined) shut(d direction, verdict Statement) []Rule {
	var rules []Rule
	for _, f := range families() {
		for _, s := range []Set{f.shutSet(), f.shutAnySet()} {
			rules = append(rules, with(j.inPorts(d, s, unix.IPPROTO_UDP), verdict))
		}
	}
	return rules
}

// judge decides on what goes straight out, and judge_in on the answers.
func (j *joined) judge() Chain {
	rules := j.listed(outgoing, listDeny, 0, Goto("deny_denied"))
	rules = append(rules, j.listedPing(outgoing, listDeny, Goto("deny_denied"))...)
	rules = append(rules, j.resolvers(outgoing, Goto("allow_rule"))...)
	// What goes to port 53 and was not redirected has no resolver of ours in its
	// family, or is the engine's own question (B48).
	rules = append(rules, rule(TCPorUDP(), DPort(53), Goto("deny_unlisted")))
	switch j.mode {
	case policy.ModeAllowlist:
		rules = append(rules, j.judgeAllowlist(outgoing, Goto("allow_rule"))...)
		rules = append(rules,
			rule(CTState(StateEstablished), Goto("deny_revoked")),
			rule(Goto("deny_unlisted")))
	case policy.ModePublic, policy.ModeDenylist:
		if j.names {
			// TCP would have come to the proxy, if it had one in this family.
			rules = append(rules,
				rule(L4(unix.IPPROTO_TCP), CTState(StateEstablished), Goto("deny_revoked")),
				rule(L4(unix.IPPROTO_TCP), Goto("deny_unprotected")),
				rule(UDPDPort(443), Goto("deny_protocol")))
			rules = append(rules, j.shut(outgoing, Goto("deny_denied"))...)
		}
		rules = append(rules,
			rule(L4(unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP), Goto("allow_mode")),
			rule(ICMPv6Type(icmp6Echo), Goto("allow_mode")),
			rule(Goto("deny_protocol")))
	case policy.ModeNoNetwork:
		rules = append(rules, rule(Goto("deny_mode")))
	default:
		rules = append(rules, rule(Goto("deny_unprotected")))
	}
	return Chain{Name: "judge", Rules: rules}
}

// judgeAllowlist are the rules by which an allowlist lets packets go straight.
func (j *joined) judgeAllowlist(d direction, verdict Statement) []Rule {
	var rules []Rule
	if j.names && d == outgoing {
		// New TCP flows went to the proxy; those that ran already stay.
		rules = j.listed(d, listAllow, unix.IPPROTO_TCP, CTState(StateEstablished), verdict)
		rules = append(rules, j.listed(d, listAllow, unix.IPPROTO_UDP, verdict)...)
	} else {
		rules = j.listed(d, listAllow, 0, verdict)
	}
	rules = append(rules, j.listedPing(d, listAllow, verdict)...)
	if j.names {
		// QUIC hides its name: only an address target opens it now (policy.md
		// section 3, step 2).
		if d == outgoing {
			rules = append(rules, rule(UDPDPort(443), Goto("deny_protocol")))
		} else {
			rules = append(rules, rule(UDPSPort(443), Drop()))
		}
	}
	for _, f := range families() {
		rules = append(rules, rule(j.in(d, f.udpSet(), unix.IPPROTO_UDP), verdict))
	}
	return rules
}

// judgeIn judges answers to flows that went straight out, as judge does the
// questions.
func (j *joined) judgeIn() []Chain {
	c := Chain{Name: "judge_in"}
	if j.Lockdown || j.Policy == nil {
		c.Rules = []Rule{rule(Count(), Drop())}
		return []Chain{c}
	}
	c.Rules = append(c.Rules, j.listed(incoming, listDeny, 0, Drop())...)
	c.Rules = append(c.Rules, j.listedPing(incoming, listDeny, Drop())...)
	c.Rules = append(c.Rules, j.resolvers(incoming, Accept())...)
	switch j.mode {
	case policy.ModeAllowlist:
		c.Rules = append(c.Rules, j.judgeAllowlist(incoming, Accept())...)
	case policy.ModePublic, policy.ModeDenylist:
		if j.names {
			c.Rules = append(c.Rules, rule(L4(unix.IPPROTO_TCP), Drop()), rule(UDPSPort(443), Drop()))
			c.Rules = append(c.Rules, j.shut(incoming, Drop())...)
		}
		c.Rules = append(c.Rules, rule(Accept()))
		return []Chain{c}
	case policy.ModeNoNetwork:
	}
	c.Rules = append(c.Rules, rule(Count(), Drop()))
	return []Chain{c}
}

// redirect brings questions and connections to our listeners, before the
// engine's own rules (-100) see them (B16). It sees the first packet of a flow.
func (j *joined) redirect() Chain {
	c := Chain{Name: "redirect", Hook: &Hook{Type: "nat", Point: Output, Priority: -110}}
	c.Rules = append(c.Rules, with(j.own(), Accept()))
	for _, u := range j.EngineUpstreams {
		c.Rules = append(c.Rules, rule(To(hostPrefix(u)), TCPorUDP(), DPort(53), Accept()).Comments("the engine's own question: refused, not turned in a circle (B48)"))
	}
	c.Rules = append(c.Rules, j.resolvers(outgoing, Accept())...)
	if p := j.V4.DNS; p != 0 {
		c.Rules = append(c.Rules, rule(IsIPv4(), TCPorUDP(), DPort(53), Redirect(p)))
	}
	if p := j.V6.DNS; p != 0 {
		c.Rules = append(c.Rules, rule(IsIPv6(), TCPorUDP(), DPort(53), Redirect(p)))
	}
	c.Rules = append(c.Rules, rule(OutIface("lo"), Accept()), rule(To(j.loopback), Accept()))
	if j.Lockdown || j.Policy == nil {
		return c
	}
	tcp := []Statement{L4(unix.IPPROTO_TCP)}
	c.Rules = append(c.Rules, j.listed(outgoing, listDeny, unix.IPPROTO_TCP, Accept())...)
	web := rule(TCPDPort(80, 443), Goto("proxy"))
	switch j.mode {
	case policy.ModeAllowlist:
		verdict := Accept()
		if j.names {
			verdict = Goto("proxy")
		}
		c.Rules = append(c.Rules, j.listed(outgoing, listAllow, unix.IPPROTO_TCP, verdict)...)
		if !j.StrictDestinations {
			c.Rules = append(c.Rules, web)
		}
		for _, f := range families() {
			c.Rules = append(c.Rules,
				rule(InSet(f.synSet(), unix.IPPROTO_TCP), Goto("proxy")),
				with(tcp, InSet(f.synAnySet(), 0), Goto("proxy")))
		}
	case policy.ModePublic, policy.ModeDenylist:
		if j.names {
			c.Rules = append(c.Rules, with(tcp, Goto("proxy")))
		}
	case policy.ModeNoNetwork:
		if !j.StrictDestinations {
			c.Rules = append(c.Rules, web)
		}
	}
	return c
}

// proxyChain redirects TCP to the listener of its family, if there is one.
func (j *joined) proxyChain() Chain {
	c := Chain{Name: "proxy"}
	if p := j.V4.TCP; p != 0 {
		c.Rules = append(c.Rules, rule(IsIPv4(), L4(unix.IPPROTO_TCP), Redirect(p)))
	}
	if p := j.V6.TCP; p != 0 {
		c.Rules = append(c.Rules, rule(IsIPv6(), L4(unix.IPPROTO_TCP), Redirect(p)))
	}
	return c
}
