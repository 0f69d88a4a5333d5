package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// query is one DNS message on its way to a server.
type query struct {
	network string
	to      netip.AddrPort
	message []byte
	// name is the name asked for, or that the message is made of.
	name string
}

// answer is what became of a query.
type answer struct {
	reply *dns.Msg
	err   error
	// ours: who answered is exeat's resolver, as its answer to another question says.
	ours bool
}

// refused says that the server would not have the message at all.
func (a answer) refused() bool {
	switch a.reply.Rcode {
	case dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeRefused:
		return true
	}
	return false
}

// String says it shortly.
func (a answer) String() string {
	switch {
	case a.reply == nil:
		return short(a.err)
	case a.denial() != "":
		return dns.RcodeToString[a.reply.Rcode] + " (" + a.denial() + ")"
	}
	return fmt.Sprintf("%s, %d answers", dns.RcodeToString[a.reply.Rcode], len(a.reply.Answer))
}

// denial is the reason that exeat gives in an Extended DNS Error (RFC 8914).
func (a answer) denial() string {
	if opt := a.reply.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok && strings.HasPrefix(e.ExtraText, "exeat: ") {
				return e.ExtraText
			}
		}
	}
	return ""
}

// question asks for the name's IPv4 address, with EDNS.
func question(network string, to netip.AddrPort, name string) query {
	return questionOf(network, to, name, dns.TypeA)
}

func questionOf(network string, to netip.AddrPort, name string, qtype uint16) query {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	m.SetEdns0(1232, false)
	b, err := m.Pack()
	if err != nil {
		b = nil // a name that is no name: an empty message is refused, too
	}
	return query{network, to, b, name}
}

// ask sends a query and waits for its answer.
func (a *attempt) ask(q query) answer {
	a.to = q.to.Addr()
	err := a.unlessAllowed(policy.Request{Kind: policy.KindQuestion, Name: q.name, QType: dns.TypeA})
	if err != nil {
		return answer{err: err}
	}
	c, err := a.dialer(time.Second).DialContext(a.ctx, q.network, q.to.String())
	if err != nil {
		return answer{err: err}
	}
	defer (&conn{Conn: c}).end()
	if err := c.SetDeadline(a.within(time.Second)); err != nil {
		return answer{err: err}
	}
	message := q.message
	if q.network == "tcp" {
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
	}
	if _, err := c.Write(message); err != nil {
		return answer{err: err}
	}
	b := make([]byte, 65535)
	n := 0
	if q.network == "tcp" {
		if _, err := io.ReadFull(c, b[:2]); err != nil {
			return answer{err: err}
		}
		n, err = io.ReadFull(c, b[:binary.BigEndian.Uint16(b)])
	} else {
		n, err = c.Read(b)
	}
	if err != nil {
		return answer{err: err}
	}
	reply := new(dns.Msg)
	if err := reply.Unpack(b[:n]); err != nil {
		return answer{err: err}
	}
	return answer{reply: reply}
}

// deniedQuestion asks for a name that must not be answered.
func (a *attempt) deniedQuestion(network string, to netip.AddrPort, name string) sight {
	return a.ask(question(network, to, name)).sight()
}

// sight judges the answer to a question that must be refused.
func (a answer) sight() sight {
	switch {
	case errors.Is(a.err, errAllowed):
		return unproven(a.err.Error(), allowedByPolicy)
	case a.reply == nil:
		if errno := errnoOf(a.err); errno == unix.EPERM {
			return held("%s", a)
		}
		if errors.Is(a.err, io.EOF) {
			return unproven("closed without an answer", "nothing says by whom")
		}
		return unproven(a.String(), noFarSide)
	case strings.HasPrefix(a.denial(), "exeat: denied"):
		return held("%s", a)
	case a.denial() != "":
		return unproven(a.String(), "the policy in force allows the question")
	case len(a.reply.Answer) > 0:
		return leak("%s", a)
	case a.ours && a.refused():
		return held("%s", a)
	}
	return unproven(a.String(), "nothing says who answered: it may have been asked outside")
}

// dnsCases ask a resolver of the attacker's: all of port 53 comes to exeat's.
func dnsCases() []Case {
	const answered = "answered by exeat: denied, or malformed"
	at := func(a *attempt) netip.AddrPort { return netip.AddrPortFrom(a.IPv4, 53) }
	at6 := func(a *attempt) netip.AddrPort { return netip.AddrPortFrom(a.IPv6, 53) }
	raw := func(id, attack string, change func(a *attempt, b []byte) []byte) Case {
		return Case{ID: id, Attack: attack, Expected: answered, try: func(a *attempt) sight {
			q := question("udp", at(a), a.Name)
			q.message = change(a, q.message)
			answer := a.ask(q)
			if answer.reply != nil && answer.refused() {
				answer.ours = a.deniedQuestion("udp", at(a), a.Name).verdict == Held
			}
			return answer.sight()
		}}
	}
	typed := func(qtype uint16) Case {
		return Case{
			ID: "B62", Attack: "a question of type " + dns.TypeToString[qtype], Expected: answered,
			try: func(a *attempt) sight {
				return a.ask(questionOf("udp", at(a), a.marker+"."+a.Name, qtype)).sight()
			},
		}
	}
	named := func(id, attack, name string) Case {
		return Case{ID: id, Attack: attack, Expected: answered, try: func(a *attempt) sight {
			return a.deniedQuestion("udp", at(a), name)
		}}
	}
	return []Case{
		{ID: "B63", Attack: "DNS over TCP, to a resolver of its own", Expected: answered, try: func(a *attempt) sight { return a.deniedQuestion("tcp", at(a), a.Name) }},
		{ID: "B63", Attack: "DNS by IPv6", Expected: answered, try: func(a *attempt) sight { return a.deniedQuestion("udp", at6(a), a.Name) }},
		{ID: "B63", Attack: "DNS over TCP by IPv6", Expected: answered, try: func(a *attempt) sight { return a.deniedQuestion("tcp", at6(a), a.Name) }},
		{ID: "B63", Attack: "DNS over TLS to port 853", Expected: denied, try: func(a *attempt) sight { return a.hello(853, helloParts{name: []byte(a.Name)}) }},
		{ID: "B65", Attack: "data in a denied name", Expected: answered, try: func(a *attempt) sight { return a.deniedQuestion("udp", at(a), a.marker+"data."+a.Name) }},
		raw("B61", "two questions in one message", func(a *attempt, b []byte) []byte { return twoQuestions(a.Name) }),
		raw("B61", "bytes after the message", func(a *attempt, b []byte) []byte { return append(b, a.marker...) }),
		raw("B61", "a NUL inside a label", func(a *attempt, b []byte) []byte { return questionOfLabels("a\x00b", "invalid") }),
		raw("B61", "a dot inside a label", func(a *attempt, b []byte) []byte { return questionOfLabels("a.b", "invalid") }),
		raw("B61", "a label that points to itself", func(a *attempt, b []byte) []byte {
			loop := append([]byte{}, b[:12]...)
			loop[11] = 0 // no additional record
			return append(loop, 0xc0, 12, 0, 1, 0, 1)
		}),
		named("B60", "a number for a name", "2130706433"),
		named("B20", "the metadata service by its name", "metadata.google.internal"),
		typed(dns.TypeTXT), typed(dns.TypeNULL), typed(dns.TypeANY), typed(dns.TypeHTTPS),
	}
}

func twoQuestions(name string) []byte {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), dns.TypeA)
	m.Question = append(m.Question, dns.Question{Name: "second." + dns.Fqdn(name), Qtype: dns.TypeA, Qclass: dns.ClassINET})
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// questionOfLabels writes a question whose labels may hold anything.
func questionOfLabels(labels ...string) []byte {
	b := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1}
	for _, l := range labels {
		b = append(append(b, byte(len(l))), l...)
	}
	b = append(b, 0, 0, 1, 0, 1)
	return append(b, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0) // OPT, for the reason
}
