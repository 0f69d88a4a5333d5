package dnsfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Bounds of what is believed of a reply.
const (
	minTTL = 1
	maxTTL = 3600
	// maxNegativeTTL bounds how long a name is held not to exist (RFC 2308
	// section 5 allows hours; swaps and new services want less).
	maxNegativeTTL = 300
	// noSOATTL is for negative answers that come without a SOA.
	noSOATTL = 5
	maxChain = 16
	// maxAnswerWire keeps every answer, with our OPT, below 64 KiB.
	maxAnswerWire = dns.MaxMsgSize - 1024
)

var errChain = errors.New("CNAME chain loops or is too long")

// records are those of one or more replies that belong to one question.
type records struct {
	rcode  int
	chain  []dns.RR // CNAMEs, in order
	answer []dns.RR
	soa    *dns.SOA
	// last is where the chain ends, lower case with its last dot.
	last string
}

// collect walks from name over m's CNAMEs to records of the type asked for.
// Whatever else stands in m, in any section, is left behind.
func (r *records) collect(name string, qtype uint16, m *dns.Msg) error {
	r.rcode, r.last = m.Rcode, canonical(name)
	for {
		next := ""
		for _, rr := range m.Answer {
			h := rr.Header()
			if h.Class != dns.ClassINET || !strings.EqualFold(h.Name, r.last) {
				continue
			}
			if h.Rrtype == qtype {
				clampTTL(h, r.last)
				r.answer = append(r.answer, rr)
			} else if cname, ok := rr.(*dns.CNAME); ok && next == "" {
				clampTTL(h, r.last)
				r.chain = append(r.chain, cname)
				next = canonical(cname.Target)
			}
		}
		if len(r.answer) > 0 || next == "" {
			break
		}
		if len(r.chain) > maxChain {
			return errChain
		}
		r.last = next
	}
	if len(r.answer) > 0 {
		return nil
	}
	for _, rr := range m.Ns {
		soa, ok := rr.(*dns.SOA)
		if ok && soa.Hdr.Class == dns.ClassINET && dns.IsSubDomain(soa.Hdr.Name, r.last) {
			r.soa = soa
			return nil
		}
	}
	return nil
}

// incomplete says whether the reply only pointed elsewhere, so that the end of
// the chain must be asked for.
func (r *records) incomplete() bool {
	return r.rcode == dns.RcodeSuccess && len(r.chain) > 0 && len(r.answer) == 0 && r.soa == nil
}

func canonical(name string) string { return strings.ToLower(dns.Fqdn(name)) }

// clampTTL bounds the TTL and writes the owner as we asked for it.
func clampTTL(h *dns.RR_Header, owner string) {
	h.Ttl, h.Name = clampedTTL(h.Ttl), owner
}

// clampedTTL bounds a TTL; one with the top bit set is zero (RFC 2181 section 8).
func clampedTTL(ttl uint32) uint32 {
	if ttl > 1<<31-1 {
		ttl = 0
	}
	return min(max(ttl, minTTL), maxTTL)
}

// ttl is how long the whole may be kept (RFC 2308 section 5 for negatives).
func (r *records) ttl() uint32 {
	ttl := uint32(maxTTL)
	for _, rr := range r.chain {
		ttl = min(ttl, rr.Header().Ttl)
	}
	for _, rr := range r.answer {
		ttl = min(ttl, rr.Header().Ttl)
	}
	switch {
	case len(r.answer) > 0:
		return ttl
	case r.soa != nil:
		return min(ttl, max(minTTL, min(r.soa.Hdr.Ttl, r.soa.Minttl, maxNegativeTTL)))
	default:
		return min(ttl, noSOATTL)
	}
}

// entry packs the records as the answer to k, in room where they fit; m is what was
// packed.
func (r *records) entry(k key, now time.Duration, room []byte) (e *entry, m *dns.Msg, err error) {
	ttl := r.ttl()
	if r.soa != nil {
		r.soa.Hdr.Ttl = ttl
	}
	m = r.message(k)
	wire, err := m.PackBuffer(room)
	if err != nil {
		return nil, nil, fmt.Errorf("pack the answer: %w", err)
	}
	if len(wire) > maxAnswerWire {
		return nil, nil, fmt.Errorf("answer of %d bytes is too long", len(wire))
	}
	packed, err := k.sectionsOf(wire)
	if err != nil {
		return nil, nil, err
	}
	return &entry{
		name: k.name, qtype: k.qtype, rcode: uint16(r.rcode), ttl: uint16(ttl), stored: now,
		body: packed.body, answers: packed.answers, nsRRs: packed.nsRRs,
	}, m, nil
}

// message has k as its question, so that compression pointers to it hold under
// any client's spelling of the same name.
func (r *records) message(k key) *dns.Msg {
	m := k.message()
	m.Rcode = r.rcode
	m.Answer = make([]dns.RR, 0, len(r.chain)+len(r.answer))
	m.Answer = append(append(m.Answer, r.chain...), r.answer...)
	if r.soa != nil {
		m.Ns = []dns.RR{r.soa}
	}
	return m
}

// message is a reply to k without records.
func (k key) message() *dns.Msg {
	m := new(dns.Msg)
	m.Response, m.Compress = true, true
	m.Question = []dns.Question{{Name: dns.Fqdn(k.name), Qtype: k.qtype, Qclass: dns.ClassINET}}
	return m
}

// questionLen is the length of k's question section.
func (k key) questionLen() int {
	if k.name == "." {
		return 1 + 4
	}
	return len(k.name) + 2 + 4
}

// sections are the answer and authority sections of a message, packed to follow its
// question.
type sections struct {
	body           string
	answers, nsRRs uint16
}

// sectionsOf cuts them from a packed answer to k. wire is our own packing, so it is
// well formed; that they are whole is what each relies on.
func (k key) sectionsOf(wire []byte) (sections, error) {
	s := sections{
		body:    string(wire[headerLen+k.questionLen():]),
		answers: binary.BigEndian.Uint16(wire[6:]),
		nsRRs:   binary.BigEndian.Uint16(wire[8:]),
	}
	off := 0
	for range int(s.answers) + int(s.nsRRs) {
		off = skipName(s.body, off)
		if off+fixedLen > len(s.body) {
			return sections{}, errors.New("packed answer is cut short")
		}
		off += fixedLen + int(uint16At(s.body, off+8))
	}
	if off != len(s.body) {
		return sections{}, errors.New("packed answer has bytes left over")
	}
	return s, nil
}

// fixedLen is the length of a record's type, class, TTL and length.
const fixedLen = 10

// each walks over the records: where the fixed part of each begins.
func (s sections) each(yield func(i, off int) bool) {
	off := 0
	for i := range int(s.answers) + int(s.nsRRs) {
		off = skipName(s.body, off)
		if !yield(i, off) {
			return
		}
		off += fixedLen + int(uint16At(s.body, off+8))
	}
}

// addresses are those of the answer's A and AAAA records.
func (s sections) addresses() []netip.Addr {
	var addrs []netip.Addr
	for i, off := range s.each {
		if t := uint16At(s.body, off); i >= int(s.answers) || t != dns.TypeA && t != dns.TypeAAAA {
			continue
		}
		data := s.body[off+fixedLen:][:uint16At(s.body, off+8)]
		if addr, ok := netip.AddrFromSlice([]byte(data)); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}

// message is the whole reply that the sections were cut from.
func (e *entry) message() (*dns.Msg, error) {
	wire, err := e.key().message().Pack()
	if err != nil {
		return nil, fmt.Errorf("pack the question: %w", err)
	}
	binary.BigEndian.PutUint16(wire[6:], e.answers)
	binary.BigEndian.PutUint16(wire[8:], e.nsRRs)
	m := new(dns.Msg)
	if err := m.Unpack(append(wire, e.body...)); err != nil {
		return nil, fmt.Errorf("unpack the cached answer: %w", err)
	}
	return m, nil
}

func uint16At(s string, off int) uint16 { return uint16(s[off])<<8 | uint16(s[off+1]) }

// skipName gives the offset after a name; past the end where it has none.
func skipName(b string, off int) int {
	for off < len(b) {
		switch n := int(b[off]); {
		case n == 0:
			return off + 1
		case n >= 0xC0:
			return off + 2
		default:
			off += 1 + n
		}
	}
	return off
}
