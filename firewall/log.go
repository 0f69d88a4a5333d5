package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// LogConfig says where the packets that the rules log come from and go to.
type LogConfig struct {
	// Group is that of JoinedInput.LogGroup.
	Group uint16
	// Policy names the rule of a verdict; Names the names of an address.
	Policy interface{ Load() *policy.Compiled }
	Names  interface{ Names(netip.Addr) []string }
	Log    interface{ Record(audit.Event) audit.Event }
	// Attack is called for a packet that only an attacker sends; nil: nobody is.
	Attack func()
}

// Log turns packets that the kernel logged into events. It reads the group by
// itself, since go-nflog throws away what netdev chains log (nftables-notes).
type Log struct {
	LogConfig
	feed    *feed
	started bool
	next    uint32 // sequence number of the next packet
	lost    atomic.Uint64

	// attacks are those that no event stands for yet; spent is how much of attackBurst
	// was, by attacked.
	attacks  uint64
	spent    time.Duration
	attacked time.Time
}

// Attacks become events one by one at first, attackBurst of them, and then one in
// attackEvery: who can make one can make a hundred thousand a second.
const (
	attackEvery = time.Second
	attackBurst = 16
)

// Of linux/netfilter/nfnetlink_log.h.
const (
	ulog            = 4 << 8 // NFNL_SUBSYS_ULOG
	ulogPacket      = ulog
	ulogConfig      = ulog | 1
	ulogCmd         = 1
	ulogMode        = 2
	ulogTimeout     = 4
	ulogThreshold   = 5
	ulogFlags       = 6
	ulogCmdBind     = 1
	ulogCopyPacket  = 2
	ulogFlagSeq     = 1
	ulogAttrPayload = 9
	ulogAttrPrefix  = 10
	ulogAttrSeq     = 12
)

// OpenLog binds the group in the namespace of the calling thread, so that
// nothing is missed between it and Run.
func OpenLog(c LogConfig) (*Log, error) {
	f, err := openFeed(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, err
	}
	data := nfgen(unix.AF_UNSPEC, c.Group)
	data = appendAttr(data, ulogCmd, []byte{ulogCmdBind})
	data = appendAttr(data, ulogMode, append(binary.BigEndian.AppendUint32(nil, logSnaplen), ulogCopyPacket, 0))
	// Packets come in heaps of 64, or after 50 ms.
	data = appendAttr(data, ulogTimeout, binary.BigEndian.AppendUint32(nil, 5))
	data = appendAttr(data, ulogThreshold, binary.BigEndian.AppendUint32(nil, 64))
	data = appendAttr(data, ulogFlags, binary.BigEndian.AppendUint16(nil, ulogFlagSeq))
	if err := f.request(ulogConfig, unix.NLM_F_ACK, data); err != nil {
		return nil, errors.Join(fmt.Errorf("bind log group %d: %w", c.Group, err), f.close())
	}
	return &Log{LogConfig: c, feed: f}, nil
}

// Run records events until the context ends, which is no error.
func (l *Log) Run(ctx context.Context) error {
	return l.feed.run(ctx, l.message, func() {})
}

// Close gives the group back; Run must have returned.
func (l *Log) Close() error { return l.feed.close() }

// Lost counts the packets that the kernel judged but could not tell us of.
func (l *Log) Lost() uint64 { return l.lost.Load() }

func (l *Log) message(h unix.NlMsghdr, data []byte) error {
	switch {
	case h.Type == unix.NLMSG_ERROR:
		if err := errno(data); err != nil {
			return fmt.Errorf("bind log group %d: %w", l.Group, err)
		}
		return nil
	case h.Type != ulogPacket || len(data) < 4:
		return nil
	}
	var payload []byte
	var prefix string
	err := attributes(data[4:], func(typ uint16, b []byte) {
		switch typ {
		case ulogAttrPayload:
			payload = b
		case ulogAttrPrefix:
			prefix = cString(b)
		case ulogAttrSeq:
			if len(b) == 4 {
				l.count(binary.BigEndian.Uint32(b))
			}
		}
	})
	if err != nil {
		return err
	}
	parse := parsePacket
	if Family(data[0]) == Netdev {
		parse = parseFrame
	}
	p, _ := parse(payload)
	l.record(prefix, p)
	return nil
}

// count notices gaps in the kernel's numbers, and says so in the log.
func (l *Log) count(seq uint32) {
	missing := seq - l.next
	if l.started && missing > 0 {
		l.lost.Add(uint64(missing))
		l.Log.Record(audit.Event{
			Kind: audit.KindLifecycle, Time: time.Now(), Channel: audit.ChannelPacket, Folded: uint64(missing),
			Message: fmt.Sprintf("the kernel's log overflowed: %d packets were judged and not logged", missing),
		})
	}
	l.started, l.next = true, seq+1
}

// record makes the event of one packet. The verdict is the kernel's; the policy
// in force adds the rule, and the reason where it agrees.
func (l *Log) record(prefix string, p packet) {
	if prefix == attackPrefix {
		l.attack(p, time.Now())
		return
	}
	words := strings.Fields(prefix)
	inbound := len(words) > 0 && words[0] == "in"
	if inbound {
		words = words[1:]
	}
	if len(words) != 2 {
		return // somebody else's rule logs to our group
	}
	e := audit.Event{
		Kind: audit.KindDecision, Channel: audit.ChannelPacket, Reason: policy.Reason(words[1]),
		Addr: p.dst, Port: p.dport, Protocol: p.protocol(), Client: netip.AddrPortFrom(p.src, p.sport),
	}
	if err := e.Verdict.UnmarshalText([]byte(words[0])); err != nil {
		return
	}
	c := l.Policy.Load()
	if c != nil {
		e.Generation = c.Generation()
	}
	if inbound {
		e.Addr = p.src
		e.Message = "inbound"
		l.Log.Record(e)
		return
	}
	l.explain(&e, c, p)
	l.Log.Record(e)
}

// attack tells of a packet that only an attacker sends. Where it told of many just
// now the next event stands for it.
func (l *Log) attack(p packet, now time.Time) {
	l.spent = max(l.spent-now.Sub(l.attacked), 0)
	l.attacked = now
	l.attacks++
	if l.Attack != nil {
		l.Attack()
	}
	if l.spent > (attackBurst-1)*attackEvery {
		return
	}
	l.spent += attackEvery
	e := audit.Event{
		Kind: audit.KindBreach, Channel: audit.ChannelPacket, Addr: p.dst, Port: p.dport, Protocol: p.protocol(),
		Message: "a packet bore our user id without our secrets",
	}
	if l.attacks > 1 {
		e.Folded = l.attacks
	}
	l.attacks = 0
	l.Log.Record(e)
}

// explain names the packet's destination and the rule that covers it.
func (l *Log) explain(e *audit.Event, c *policy.Compiled, p packet) {
	if !p.dst.IsValid() {
		e.Message = "a frame that is neither IPv4 nor IPv6"
		return
	}
	names := l.Names.Names(p.dst)
	if len(names) > 0 {
		e.Name = names[0]
	}
	if c == nil {
		return
	}
	d := c.Decide(policy.Request{Kind: policy.KindPacket, Addr: p.dst, Port: p.dport, Protocol: e.Protocol, Attributed: names})
	if d.Verdict != e.Verdict {
		return
	}
	e.Rule = d.Rule
	switch e.Reason {
	case policy.ReasonRevoked, policy.ReasonLimit, policy.ReasonMalformed, policy.ReasonUnprotected:
		// What the kernel saw and the policy cannot know.
	default:
		e.Reason = d.Reason
	}
}

// protocol is the policy's word; other protocols keep their number.
func (p packet) protocol() policy.Protocol {
	switch p.proto {
	case unix.IPPROTO_TCP:
		return policy.TCP
	case unix.IPPROTO_UDP:
		return policy.UDP
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return policy.ICMP
	}
	return policy.Protocol(p.proto)
}
