package firewall

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// TableName is what both of our tables are called.
const TableName = "exeat"

// The connection marks of flows that may leave. They are no secret: /proc shows
// them (bypass.md B38), but only rules set them. They are constant, so that a
// swap or a restart does not cut what is still allowed.
const (
	ctOwn    uint32 = 0x65780001 // begun by us
	ctDirect uint32 = 0x65780002 // begun by the agent, straight out
)

// JoinedInput is all that the ruleset of the joined shape depends on.
type JoinedInput struct {
	V4, V6  Ports
	Own     Own
	Secrets Secrets
	// ProbeMark is the public mark of probe sockets, which are judged as the
	// agent's although they are ours. 0: there is no probe.
	ProbeMark uint32
	// Policy nil refuses everything, as does Lockdown, which also holds our own
	// traffic back.
	Policy   *policy.Compiled
	Lockdown bool
	// StrictDestinations extends the refusal at the SYN to ports 80 and 443.
	StrictDestinations bool
	Attributed         []Attributed
	// Shut are the ports of attributed addresses on which UDP is denied by name in
	// a mode where else everything is open.
	Shut []Attributed
	// Inbound are the ports that the operator opened; port 0 opens them all.
	Inbound []policy.Opening
	// EngineDNS says that we ask the engine's DNS at 127.0.0.11; EngineUpstreams
	// are the resolvers which it asks from inside this namespace: those questions
	// are refused, since our redirect would bring them back to us (B48).
	EngineDNS       bool
	EngineUpstreams []netip.Addr
	// NetRaw says that the sandbox has NET_RAW, and could forge what the engine's
	// DNS answers over UDP (B45): then it is asked over TCP alone.
	NetRaw bool
	// Links get an egress chain each; AnyLink hooks every link, also future ones.
	// With neither there is no egress hook: only for a sandbox without NET_RAW.
	Links   []string
	AnyLink bool
	// LogGroup is the NFLOG group that Log reads.
	LogGroup uint16
	// MaxRedirected bounds the flows that the agent may have open to us; 0 is
	// DefaultMaxRedirected.
	MaxRedirected uint32
	// MaxDirect bounds the flows that the agent may have straight out by either
	// kind of verdict; 0 is DefaultMaxDirect.
	MaxDirect uint32
}

// The defaults leave most of the connection table (262,144) to others (B39).
const (
	DefaultMaxRedirected = 8192
	DefaultMaxDirect     = 65536
)

// Ports are our listeners on the loopback address of one family; 0 is none.
type Ports struct{ TCP, DNS, Explicit uint16 }

// Secrets mark a packet as judged, from output to the last hook, which wipes
// them off (bypass.md section 1).
type Secrets struct{ Mark, Priority uint32 }

// Own tells our sockets from the agent's: by control group, or where that
// cannot be matched (Cgroup 0) by a uid that nobody else has, together with what
// the sockets bear. That is not the Secrets of the ruleset: whoever asks for
// sockets is told their priority (inet_diag(7)).
type Own struct {
	Level  uint32
	Cgroup uint64
	UID    uint32
	Bears  Secrets
}

func rule(statements ...Statement) Rule { return NewRule(statements...) }

// JoinedRuleset is the ruleset for a sandbox that shares its namespace with us.
func JoinedRuleset(in JoinedInput) Ruleset {
	if in.MaxRedirected == 0 {
		in.MaxRedirected = DefaultMaxRedirected
	}
	if in.MaxDirect == 0 {
		in.MaxDirect = DefaultMaxDirect
	}
	j := newJoined(in)
	inet := Table{Family: Inet, Name: TableName, Sets: j.sets, Chains: slices.Concat(
		[]Chain{j.track(), j.arrive(), j.arrived(), forward(), j.input()},
		j.judgeIn(),
		[]Chain{j.redirect(), j.proxyChain(), j.output(), kernelReset(), j.neighbours(), j.tail()},
		j.ownChains(),
		[]Chain{j.agent(), j.local(), j.judge()},
		j.verdictChains(),
		[]Chain{j.leave()},
	)}
	tables := []Table{inet}
	if in.AnyLink || len(in.Links) > 0 {
		tables = append(tables, Table{Family: Netdev, Name: TableName, Chains: j.egress()})
	}
	return Ruleset{Tables: tables}
}

// joined is a JoinedInput with what follows from it.
type joined struct {
	JoinedInput
	mode     policy.Mode
	names    bool // a denied name is in force
	sets     []Set
	byName   map[string]Set
	services []uint16 // ports at which packets on lo come to us
	loopback netip.Prefix
	engine   netip.Prefix
}

func newJoined(in JoinedInput) *joined {
	j := &joined{
		JoinedInput: in,
		byName:      map[string]Set{},
		loopback:    netip.MustParsePrefix("127.0.0.0/8"),
		engine:      netip.MustParsePrefix("127.0.0.11/32"),
		mode:        policy.ModeNoNetwork,
	}
	if c := in.Policy; c != nil {
		j.names = c.HoldsDeniedName()
		if m := c.Document().Mode; m != "" {
			j.mode = m
		}
	}
	j.sets = slices.Concat(policySets(in.Policy, in.Attributed), shutSets(in.Shut))
	for _, s := range j.sets {
		j.byName[s.Name] = s
	}
	j.services = []uint16{53, in.V4.TCP, in.V4.DNS, in.V4.Explicit, in.V6.TCP, in.V6.DNS, in.V6.Explicit}
	slices.Sort(j.services)
	j.services = slices.DeleteFunc(slices.Compact(j.services), func(p uint16) bool { return p == 0 })
	return j
}

// policySets are all named sets, in a fixed order.
func policySets(c *policy.Compiled, attributed []Attributed) []Set {
	var allowed, denied []policy.AddressRule
	if c != nil {
		allowed, denied = c.AllowedAddresses(), c.DeniedAddresses()
		if c.Document().Mode == policy.ModeDenylist {
			denied = append(slices.Clone(denied), metadataRules()...)
		}
	}
	return slices.Concat(addressSets(listAllow, allowed), addressSets(listDeny, denied), dnsSets(allowed), attributedSets(attributed))
}

// The lists of address targets.
const (
	listAllow = "allow"
	listDeny  = "deny"
)

// own matches what we send; asReceiver matches what comes to a socket of ours, or to
// any that bears a mark where only that tells: were it ours alone, whoever may mark
// sockets would learn which it is, by trying until a datagram to itself vanishes.
// A probe's packets are ours to the kernel, and the agent's to the rules.
func (j *joined) own() []Statement {
	var s []Statement
	if j.ProbeMark != 0 {
		s = append(s, NotMark(j.ProbeMark))
	}
	if j.Own.Cgroup != 0 {
		return append(s, InCgroup(j.Own.Level, j.Own.Cgroup))
	}
	return []Statement{UID(j.Own.UID), Mark(j.Own.Bears.Mark), Priority(j.Own.Bears.Priority)}
}

func (j *joined) asReceiver() Statement {
	if j.Own.Cgroup != 0 {
		return InCgroup(j.Own.Level, j.Own.Cgroup)
	}
	return SocketMarked()
}

// with makes a rule of shared statements and more.
func with(first []Statement, more ...Statement) Rule {
	return Rule{Statements: slices.Concat(first, more)}
}

// track keeps the agent from filling the connection table with flows to itself
// (B39): what on lo is neither ours nor the engine's DNS is not tracked. Our own
// flows to services on lo are not either, for half a flow would be invalid.
func (j *joined) track() Chain {
	untracked := []Statement{TCPorUDP(), NotDPort(j.services...), NotSPort(j.services...), NoTrack()}
	return Chain{
		Name: "track", Hook: &Hook{Type: "filter", Point: Output, Priority: -300},
		Rules: []Rule{
			with([]Statement{OutIface("lo"), NotFrom(j.engine), NotTo(j.engine)}, untracked...),
			with([]Statement{OutIface("lo"), IsIPv6()}, untracked...),
		},
	}
}

// arrive drops what no honest kernel delivers: packets on lo for somebody else
// (AF_PACKET and an inherited ip_forward, B15), our own addresses as source or
// loopback as destination on a real link.
func (j *joined) arrive() Chain {
	return Chain{
		Name: "arrive", Hook: &Hook{Type: "filter", Point: Prerouting, Priority: -310},
		Rules: []Rule{
			rule(InIface("lo"), ToForeign(), Count(), Drop()),
			rule(NotInIface("lo"), FromLocal(), Count(), Drop()),
			rule(NotInIface("lo"), To(j.loopback), Count(), Drop()),
			rule(NotInIface("lo"), To(netip.MustParsePrefix("::1/128")), Count(), Drop()),
		},
	}
}

// arrived drops foreign sources on lo (B14), except in the answers of
// redirected flows, which bear the address that was asked for, and in resets
// that output has let pass (B22).
func (j *joined) arrived() Chain {
	return Chain{
		Name: "arrived", Hook: &Hook{Type: "filter", Point: Prerouting, Priority: -150},
		Rules: []Rule{
			rule(InIface("lo"), TCPReset(), CTState(StateRelated), CTReply(), Accept()),
			rule(InIface("lo"), FromForeign(), CTNotDNAT(), Count(), Drop()),
		},
	}
}

func forward() Chain {
	return Chain{
		Name: "forward", Hook: &Hook{Type: "filter", Point: Forward, Drop: true},
		Rules: []Rule{rule(Count(), Drop())},
	}
}

// input lets answers in, judged against the sets in force (B30, B31), and what
// the operator opened.
func (j *joined) input() Chain {
	notOurs := "nobody opens flows to our own ephemeral ports (B43)"
	rules := []Rule{
		rule(InIface("lo"), NotUDPDPort(j.services...), CTState(StateNew|StateUntracked), j.asReceiver(), Count(), Drop()).Comments(notOurs),
		rule(InIface("lo"), NotTCPDPort(j.services...), TCPOpens(), j.asReceiver(), Count(), Drop()).Comments(notOurs),
		rule(InIface("lo"), Accept()),
		rule(CTMark(ctOwn), CTReply(), CTState(StateEstablished), Accept()),
		rule(CTReply(), CTState(StateRelated), ICMPType(icmpUnreachable, icmpTimeExceeded, icmpParameter), Accept()),
		rule(CTReply(), CTState(StateRelated), ICMPv6Type(icmp6Unreachable, icmp6TooBig, icmp6TimeExceeded, icmp6Parameter), Accept()),
		rule(ICMPv6Type(icmp6RouterAdvert, icmp6NeighborSolicit, icmp6NeighborAdvert), HopLimit255(), Accept()),
	}
	for _, port := range j.inboundMatches() {
		if j.Lockdown {
			break
		}
		rules = append(rules,
			with(port.in, CTOriginal(), CTState(StateNew), j.log("in allow rule")),
			with(port.in, CTOriginal(), Accept()))
	}
	rules = append(rules,
		rule(CTMark(ctDirect), CTReply(), CTState(StateEstablished), Goto("judge_in")),
		rule(CTState(StateNew), j.log("in deny unlisted"), Drop()),
		rule(Count(), Drop()))
	return Chain{Name: "input", Hook: &Hook{Type: "filter", Point: Input, Drop: true}, Rules: rules}
}

// inboundMatch matches one opened port, of what comes in and of the answers.
type inboundMatch struct{ in, out []Statement }

func (j *joined) inboundMatches() []inboundMatch {
	var m []inboundMatch
	for _, o := range j.Inbound {
		proto := uint8(unix.IPPROTO_TCP)
		if o.Protocol == policy.UDP {
			proto = unix.IPPROTO_UDP
		}
		if o.Port == 0 {
			m = append(m, inboundMatch{[]Statement{L4(proto)}, []Statement{L4(proto)}})
			continue
		}
		m = append(m, inboundMatch{
			[]Statement{portMatch(proto, 2, "dport", true, []uint16{o.Port})},
			[]Statement{portMatch(proto, 0, "sport", true, []uint16{o.Port})},
		})
	}
	return m
}

func (j *joined) log(prefix string) Statement { return LogTo(j.LogGroup, prefix, logSnaplen) }

// logSnaplen is enough for the headers that Log reads.
const logSnaplen = 128

// leave checks, after all routing, that what goes out was judged: a redirected
// packet bound to a device would carry its payload onto the wire (B13).
func (j *joined) leave() Chain {
	return Chain{
		Name: "leave", Hook: &Hook{Type: "filter", Point: Postrouting, Priority: 300, Drop: true},
		Rules: []Rule{
			rule(OutIface("lo"), Accept()),
			rule(Mark(j.Secrets.Mark), Priority(j.Secrets.Priority), Accept()),
			rule(j.log("deny unlisted"), Count(), Drop()),
		},
	}
}

// egress is the last hook before a link, which also sees what packet sockets
// send (B05, B07, B08): ARP of the kernel, and what bears both secrets, which
// end here, lest a packet tap reads them. Each link has a chain of its own, since
// kernels before 6.4 cannot add one to a chain that stands.
func (j *joined) egress() []Chain {
	rules := []Rule{
		rule(IsARP(), HasSocket(), j.log("deny unlisted"), Drop()),
		rule(IsARP(), Accept()),
		rule(Mark(j.Secrets.Mark), Priority(j.Secrets.Priority), SetMark(0), SetPriority(0), Accept()),
		rule(j.log("deny unlisted"), Count(), Drop()),
	}
	if j.AnyLink {
		rules = slices.Insert(rules, 0, rule(OutIface("lo"), Accept()))
		return []Chain{{Name: "egress", Hook: &Hook{Type: "filter", Point: Egress, Drop: true, AnyDevice: true}, Rules: rules}}
	}
	var chains []Chain
	for _, link := range j.Links {
		hook := &Hook{Type: "filter", Point: Egress, Drop: true, Devices: []string{link}}
		chains = append(chains, Chain{Name: "egress_" + link, Hook: hook, Rules: rules})
	}
	return chains
}

// String hides the secrets: they may not reach a log.
func (s Secrets) String() string { return fmt.Sprintf("Secrets(%d bits)", 64) }

// ProbeMark is the mark of probe sockets: public, since bearing it gains nothing.
const ProbeMark uint32 = 0x70726f62

// DefaultLogGroup is the NFLOG group that we use where nothing else was said.
const DefaultLogGroup uint16 = 0x6578
