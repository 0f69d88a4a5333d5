package firewall

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// output parts what we send from what the agent sends; nothing passes by its
// state alone (B30).
func (j *joined) output() Chain {
	rules := []Rule{
		rule(OutIface("lo"), TCPReset(), CTState(StateRelated), CTReply(), Jump("kernel_reset")),
		rule(CTState(StateInvalid), Count(), Drop()),
		rule(OutIface("lo"), FromForeign(), Count(), Drop()),
		with(j.own(), Goto("own")),
	}
	if j.Own.Cgroup == 0 && j.Own.UID != 0 {
		// Not uid 0, which we have at the start alone: it is the engine's too, whose
		// question must come to us. On lo connections that we accepted answer, which
		// do not inherit the priority; they are judged as the agent's.
		forged := []Statement{UID(j.Own.UID), NotOutIface("lo")}
		if j.ProbeMark != 0 {
			forged = append(forged, NotMark(j.ProbeMark))
		}
		rules = append(rules,
			with(forged, j.log(attackPrefix), Drop()).Comments("our uid without the secrets: somebody took it"),
			with(slices.Concat([]Statement{To(j.engine)}, forged[:1], forged[2:]), j.log(attackPrefix), Drop()).Comments("on lo, what would tell a right guess from a wrong one"),
			with(slices.Concat([]Statement{From(j.engine)}, forged[:1], forged[2:]), j.log(attackPrefix), Drop()),
			with(slices.Concat([]Statement{OutIface("lo"), CTOriginal(), TCPorUDP(), DPort(j.services...)}, forged[:1], forged[2:]), j.log(attackPrefix), Drop()))
	}
	rules = append(rules,
		rule(L4(unix.IPPROTO_ICMPV6), Jump("neighbours")),
		rule(CTMark(ctOwn), CTState(StateEstablished), CTOriginal(), Jump("tail")),
		rule(Goto("agent")))
	return Chain{Name: "output", Hook: &Hook{Type: "filter", Point: Output, Drop: true}, Rules: append(rules, rule(Drop()))}
}

// attackPrefix is logged of what only an attacker sends.
const attackPrefix = "attack"

// kernelReset lets the kernel's own refusals pass, which bear the address that
// was refused and would die as forged (B22). Only rejecting a packet makes a
// reset "related" without a socket; a raw socket's has one.
func kernelReset() Chain {
	return Chain{Name: "kernel_reset", Rules: []Rule{
		rule(HasSocket(), Return()),
		rule(Accept()),
	}}
}

// neighbours lets the kernel's neighbour discovery out (B10); its multicast
// reports, which nobody needs, vanish without a word.
func (j *joined) neighbours() Chain {
	return Chain{Name: "neighbours", Rules: []Rule{
		rule(HasSocket(), Return()),
		rule(ICMPv6Type(icmp6RouterSolicit, icmp6NeighborSolicit, icmp6NeighborAdvert), HopLimit255(), Goto("stamp")),
		rule(NotOutIface("lo"), Drop()),
	}}
}

// tail lets out what the kernel sends for our flows when their socket is gone:
// last acknowledgements and resets. A packet of any socket is forged here. On lo,
// where nothing wipes the secrets off, none are put on.
func (j *joined) tail() Chain {
	return Chain{Name: "tail", Rules: []Rule{
		rule(HasSocket(), Count(), Drop()),
		rule(OutIface("lo"), SetMark(0), SetPriority(0), Accept()),
		rule(Goto("stamp")),
	}}
}

// ownChains let us out, on flows that we began; never an answer (B14).
func (j *joined) ownChains() []Chain {
	local := j.astray()
	if j.EngineDNS {
		if j.NetRaw {
			local = append(local, rule(To(j.engine), L4(unix.IPPROTO_UDP), Drop()).Comments("its answers could be forged (B45)"))
		}
		local = append(local,
			rule(To(j.engine), CTState(StateNew), SetCTMark(ctOwn)),
			rule(To(j.engine), CTNotMark(ctOwn), Count(), Drop()).Comments("a flow that somebody prepared (B43)"))
	}
	if j.Own.Cgroup == 0 {
		local = append(local, rule(SetMark(0), SetPriority(0), Accept()).Comments("a packet tap on lo must not see what our sockets bear"))
	}
	local = append(local, rule(Accept()))
	own := []Rule{
		rule(OutIface("lo"), Goto("own_local")),
		rule(FromForeign(), Count(), Drop()),
		rule(CTReply(), Count(), Drop()).Comments("we never answer anyone outside lo"),
	}
	switch {
	case j.Lockdown:
		own = append(own, rule(Goto("refuse")))
	default:
		if j.mode == policy.ModeNoNetwork {
			own = append(own, rule(CTState(StateNew), Goto("refuse")).Comments("no-network holds for us too"))
		}
		own = append(own,
			rule(CTState(StateNew), SetCTMark(ctOwn)),
			rule(CTNotMark(ctOwn), Count(), Drop()),
			rule(Goto("stamp")))
	}
	return []Chain{{Name: "own", Rules: own}, {Name: "own_local", Rules: local}}
}

// astray drops flows of ours that end at our own listeners (B43). It names their
// addresses too: the engine's DNS has a port of the kernel's choice on another
// loopback address, and may have the number of ours.
func (j *joined) astray() (rules []Rule) {
	for _, l := range []struct {
		at    netip.Addr
		ports Ports
	}{{netip.AddrFrom4([4]byte{127, 0, 0, 1}), j.V4}, {netip.IPv6Loopback(), j.V6}} {
		ports := slices.DeleteFunc([]uint16{l.ports.TCP, l.ports.DNS, l.ports.Explicit}, func(p uint16) bool { return p == 0 })
		if len(ports) > 0 {
			rules = append(rules, rule(To(hostPrefix(l.at)), CTOriginal(), TCPorUDP(), DPort(ports...), Count(), Drop()).
				Comments("a flow of ours that ends at our own listener was led astray (B43)"))
		}
	}
	return rules
}

// agent judges what the agent sends, whatever marks it bears.
func (j *joined) agent() Chain {
	rules := []Rule{rule(SetMark(0))}
	if j.Own.Cgroup == 0 {
		rules = []Rule{rule(SetMark(0), SetPriority(0))} // the answers of our listeners
	}
	if j.EngineDNS {
		answer := []Statement{From(j.engine), CTMark(ctOwn), CTReply(), CTDNAT()}
		if j.NetRaw {
			answer = slices.Insert(answer, 1, L4(unix.IPPROTO_TCP))
		}
		rules = append(rules, with(answer, Accept()).Comments("the engine's DNS answers us"))
	}
	rules = append(rules,
		rule(From(j.engine), L4(unix.IPPROTO_ICMP), CTState(StateRelated), Drop()).Comments("the kernel's word on what was refused, which its sender has heard"),
		rule(From(j.engine), j.log("deny unlisted"), Count(), Drop()).Comments("forging the engine's DNS (B43)"),
		rule(To(j.engine), Goto("deny_unlisted")).Comments("the engine's DNS forwards outside (B16)"),
		rule(OutIface("lo"), Goto("local")),
		rule(To(j.loopback), Goto("local")).Comments("redirected packets still show the old link here"),
		rule(To(netip.MustParsePrefix("::1/128")), Goto("local")),
		rule(FromForeign(), j.log("deny unlisted"), Count(), Drop()),
		rule(IPOptions(), Goto("deny_malformed")).Comments("source routes (B12)"),
		rule(RoutingHeader(), Goto("deny_malformed")),
	)
	if j.Lockdown || j.Policy == nil {
		return Chain{Name: "agent", Rules: append(rules, rule(Goto("deny_unprotected")))}
	}
	for _, port := range j.inboundMatches() {
		rules = append(rules, with(port.out, CTReply(), CTState(StateEstablished), Goto("stamp")))
	}
	rules = append(rules, rule(CTReply(), Count(), Drop()).Comments("nobody was let in whom this would answer"))
	return Chain{Name: "agent", Rules: append(rules, rule(Goto("judge")))}
}

// local is the agent's loopback, and the way to our listeners.
func (j *joined) local() Chain {
	return Chain{Name: "local", Rules: []Rule{
		rule(CTState(StateNew), CTCountOver(j.MaxRedirected), Goto("deny_limit")),
		rule(Accept()),
	}}
}

// verdictChains log a verdict with its reason and carry it out. A denial is
// refused at once where its sender is here, which agent has made sure of.
func (j *joined) verdictChains() []Chain {
	chains := []Chain{
		{Name: "stamp", Rules: []Rule{
			rule(SetMark(j.Secrets.Mark), SetPriority(j.Secrets.Priority), Accept()),
		}},
		{Name: "refuse", Rules: []Rule{
			rule(L4(unix.IPPROTO_TCP), RejectTCP()),
			rule(RejectAdmin()),
		}},
	}
	for _, reason := range []policy.Reason{policy.ReasonRule, policy.ReasonMode} {
		chains = append(chains, Chain{Name: "allow_" + string(reason), Rules: []Rule{
			rule(CTState(StateNew), CTCountOver(j.MaxDirect), Goto("deny_limit")),
			rule(CTState(StateNew), SetCTMark(ctDirect), j.log("allow "+string(reason))),
			rule(Goto("stamp")),
		}})
	}
	for _, reason := range []policy.Reason{
		policy.ReasonDenied, policy.ReasonLimit, policy.ReasonMalformed, policy.ReasonMode,
		policy.ReasonProtocol, policy.ReasonRevoked, policy.ReasonUnlisted, policy.ReasonUnprotected,
	} {
		chains = append(chains, Chain{Name: "deny_" + string(reason), Rules: []Rule{
			rule(j.log("deny " + string(reason))),
			rule(Goto("refuse")),
		}})
	}
	return chains
}
