package dnsfilter

import (
	"encoding/binary"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/policy"
)

// plain is an answer of the most frequent form, read in place: addresses of the very
// name that was asked for, and at most an empty OPT record. Whatever differs in the
// least is for miekg/dns to parse; FuzzUpstreamReply holds both readings to be the
// same.
type plain struct {
	sections
	ttl uint16
}

// got is what an upstream replied: parsed, unless it was plain.
type got struct {
	*dns.Msg
	plain plain
}

func (g *got) rcode() int {
	if g.Msg == nil {
		return dns.RcodeSuccess
	}
	return g.Rcode
}

// parsed is g parsed; k is what was asked.
func (g *got) parsed(k key) (*dns.Msg, error) {
	if g.Msg != nil {
		return g.Msg, nil
	}
	return (&entry{name: k.name, qtype: k.qtype, body: g.plain.body, answers: g.plain.answers}).message()
}

// maxPlain is how many records an answer of that form has at most.
const maxPlain = 32

// readPlain reads a reply that matches w. ok is false where it is of another form.
func (w *query) readPlain(msg []byte) (p plain, ok bool) {
	const rcode = 0xF
	answers := int(binary.BigEndian.Uint16(msg[6:]))
	authority, additional := binary.BigEndian.Uint16(msg[8:]), binary.BigEndian.Uint16(msg[10:])
	question := w.buf[headerLen:w.question]
	name, qtype := question[:len(question)-4], binary.BigEndian.Uint16(question[len(question)-4:])
	size := addressLen(qtype)
	if msg[3]&rcode != 0 || answers == 0 || answers > maxPlain || authority != 0 || additional > 1 || size == 0 || len(name) < 2 {
		return plain{}, false
	}
	var room [maxPlain * (2 + fixedLen + 16)]byte
	body, rest, ttl := room[:0], msg[w.question:], uint32(maxTTL)
	for range answers {
		rest, ok = cutOwner(rest, name)
		if !ok || len(rest) < fixedLen+size || binary.BigEndian.Uint16(rest) != qtype ||
			binary.BigEndian.Uint16(rest[2:]) != dns.ClassINET || int(binary.BigEndian.Uint16(rest[8:])) != size {
			return plain{}, false
		}
		own := clampedTTL(binary.BigEndian.Uint32(rest[4:]))
		ttl = min(ttl, own)
		body = append(body, pointer, headerLen) // to the question's name
		body = append(body, rest[:4]...)
		body = binary.BigEndian.AppendUint32(body, own)
		body = append(body, rest[8:fixedLen+size]...)
		rest = rest[fixedLen+size:]
	}
	if additional == 1 {
		// Root, OPT, their size, no extended code, version 0, no options.
		if len(rest) != optFixedLen || rest[0] != 0 || binary.BigEndian.Uint16(rest[1:]) != dns.TypeOPT ||
			rest[5] != 0 || rest[6] != 0 || rest[9] != 0 || rest[10] != 0 {
			return plain{}, false
		}
		rest = nil
	}
	if len(rest) != 0 {
		return plain{}, false
	}
	return plain{sections{body: string(body), answers: uint16(answers)}, uint16(ttl)}, true
}

// pointer begins a compressed name (RFC 1035 section 4.1.4).
const pointer = 0xC0

// cutOwner takes off a record's owner, which must be name: spelled out, or a pointer
// to the question.
func cutOwner(b, name []byte) (rest []byte, ok bool) {
	if len(b) >= 2 && b[0] == pointer && b[1] == headerLen {
		return b[2:], true
	}
	if len(b) < len(name) {
		return nil, false
	}
	for i, c := range name {
		if lowerByte(b[i]) != lowerByte(c) {
			return nil, false
		}
	}
	return b[len(name):], true
}

// addressLen is the length of an address record's data, 0 for other types.
func addressLen(qtype uint16) int {
	switch qtype {
	case dns.TypeA:
		return 4
	case dns.TypeAAAA:
		return 16
	}
	return 0
}

// keepPlain is keep for a plain answer.
func (s *Server) keepPlain(e *epoch, p *policy.Compiled, k key, got *plain) (*entry, error) {
	found := &entry{
		name: k.name, qtype: k.qtype, ttl: got.ttl, stored: time.Since(s.began), body: got.body, answers: got.answers,
	}
	v, ok := s.inspectPlain(found, p)
	if ok {
		found.view.Store(v)
	} else if _, err := s.viewOf(found, p); err != nil {
		return nil, err
	}
	e.cache.put(found)
	return found, nil
}

// inspectPlain is inspect for an answer of addresses alone, where all of them may be
// handed out; ok is false where one may not.
func (s *Server) inspectPlain(e *entry, p *policy.Compiled) (v *view, ok bool) {
	decision := judge(p, e.name, e.qtype)
	if decision.Verdict == policy.Deny {
		return nil, false
	}
	for _, addr := range e.sections().addresses() {
		if s.decideAddress(p, e.name, addr, false).Verdict == policy.Deny {
			return nil, false
		}
	}
	v = s.newView(p, decision, odd{})
	v.attributed.Store(neverAttributed)
	return v, true
}
