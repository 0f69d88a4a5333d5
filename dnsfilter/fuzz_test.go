package dnsfilter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// silentLog gives every decision the same id, so that answers can be compared.
type silentLog struct{}

func (silentLog) Record(e audit.Event) audit.Event {
	e.DecisionID = "same-1"
	return e
}

// newBench is a Server without sockets: its pins stand for the internet.
func newBench(t testing.TB, document string) *Server {
	t.Helper()
	doc, _, err := policy.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	var inForce atomic.Pointer[policy.Compiled]
	inForce.Store(policy.Compile(doc, policy.Options{Generation: 1}))
	s, err := New(Config{
		Policy: &inForce, Log: silentLog{}, Names: attribution.New(time.Hour, nil),
		Pins: map[string][]netip.Addr{
			"pin.test": {netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")},
		},
		QueryTimeout: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

const fuzzPolicy = `{"network_mode":"allowlist","allowed_hosts":["pin.test","*.wild.test","a.test","0.0.0.0/32"],"denied_hosts":["evil.test"]}`

func messageSeeds(f *testing.F) {
	for _, name := range []string{"pin.test.", "PIN.test.", "x.wild.test.", "wild.test.", "other.test.", ".", "203.0.113.1.", "a\\.b.test.", "a\\000b.test."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeANY, dns.TypeHTTPS} {
			var m dns.Msg
			m.SetQuestion(name, qtype)
			if qtype != dns.TypeA {
				m.SetEdns0(1232, true)
				m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"})
			}
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
			f.Add(append(b, 0))
			f.Add(b[:len(b)-1])
		}
	}
	f.Add([]byte{})
	f.Add([]byte("\x12\x34\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01\x01b\x00\x00\x01\x00\x01"))
	f.Add([]byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\xc0\x0c\x00\x01\x00\x01"))
}

// reference reads a question with miekg/dns and the rules of bypass B61.
func reference(msg []byte) (*dns.Msg, bool) {
	var m dns.Msg
	if len(msg) < headerLen || len(msg) >= maxQuery || m.Unpack(msg) != nil || m.Response || m.Opcode != dns.OpcodeQuery {
		return nil, false
	}
	if binary.BigEndian.Uint16(msg[4:]) != 1 || binary.BigEndian.Uint32(msg[6:]) != 0 || len(m.Question) != 1 || len(m.Extra) > 1 ||
		int(binary.BigEndian.Uint16(msg[10:])) != len(m.Extra) {
		return nil, false
	}
	name := m.Question[0].Name
	escapes := strings.ReplaceAll(name, `\\`, "") // a backslash of the label's own
	wire := make([]byte, maxNameLen+1)
	n, err := dns.PackDomainName(name, wire, 0, nil, false)
	if err != nil || strings.Contains(escapes, `\.`) || strings.Contains(escapes, `\000`) || m.Question[0].Qclass != dns.ClassINET {
		return nil, false
	}
	end := headerLen + n + 4
	if end > len(msg) || !bytes.EqualFold(wire[:n], msg[headerLen:headerLen+n]) {
		return nil, false // a compression pointer in the question
	}
	if len(m.Extra) == 1 {
		opt, ok := m.Extra[0].(*dns.OPT)
		if !ok || opt.Hdr.Name != "." || msg[end] != 0 || opt.Version() != 0 {
			return nil, false
		}
		end += optFixedLen + int(binary.BigEndian.Uint16(msg[end+9:]))
	}
	return &m, end == len(msg)
}

// FuzzQuestion holds our parser against miekg/dns: what one accepts the other
// does, and they read the same.
func FuzzQuestion(f *testing.F) {
	messageSeeds(f)
	f.Fuzz(func(t *testing.T, msg []byte) {
		var q question
		err := q.parse(msg)
		m, accepted := reference(msg)
		if accepted && err != nil {
			t.Fatalf("refused (%v) what is well formed: %v", err, m)
		}
		if err != nil {
			return
		}
		if !accepted {
			var lenient dns.Msg
			if q.edns && lenient.Unpack(msg) != nil {
				return // an option whose content miekg/dns does not like; we do not look at it
			}
			t.Fatalf("accepted what the reference refuses: %x", msg)
		}
		opt := m.IsEdns0()
		if q.qtype != m.Question[0].Qtype || q.id != m.Id || q.edns != (opt != nil) {
			t.Fatalf("read differently: %+v, %v", q, m)
		}
		if name := strings.ToLower(strings.TrimSuffix(m.Question[0].Name, ".")); !strings.Contains(name, `\`) && name != string(q.lower) {
			t.Fatalf("read %q, not %q", q.lower, name)
		}
	})
}

// FuzzMessage puts a client's bytes through the whole server, by the way that
// answers at once and by the way that waits: both must answer alike, parseably,
// within the client's size, with the client's own question.
func FuzzMessage(f *testing.F) {
	messageSeeds(f)
	s := newBench(f, fuzzPolicy)
	f.Fuzz(func(t *testing.T, msg []byte) {
		var q question
		err := q.parse(msg)
		if errors.Is(err, errNotQuestion) {
			return
		}
		var bad *fault
		if errors.As(err, &bad) {
			r := s.malformed(&q, bad)
			checkAnswer(t, &q, respond(nil, &q, &r, false), false)
			return
		}
		later := s.answerLater(context.Background(), &q, netip.Addr{})
		slow := respond(nil, &q, &later, false)
		checkAnswer(t, &q, slow, true)
		now, done := s.answerNow(&q, time.Now())
		if !done {
			if later.rcode != dns.RcodeServerFailure && later.rcode != dns.RcodeNameError && len(q.lower) > 0 {
				t.Fatalf("an answer that was just given is not at hand: %+v", later)
			}
			return
		}
		if quick := respond(nil, &q, &now, false); !sameButTTL(t, quick, slow) {
			t.Fatalf("two ways, two answers:\n%x\n%x", quick, slow)
		}
	})
}

func sameButTTL(t *testing.T, a, b []byte) bool {
	t.Helper()
	var ma, mb dns.Msg
	if ma.Unpack(a) != nil || mb.Unpack(b) != nil {
		t.Fatalf("an answer does not parse: %x %x", a, b)
	}
	for _, m := range []*dns.Msg{&ma, &mb} {
		for _, rr := range append(append([]dns.RR{}, m.Answer...), m.Ns...) {
			rr.Header().Ttl = 0
		}
	}
	return ma.String() == mb.String()
}

func checkAnswer(t *testing.T, q *question, out []byte, whole bool) {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(out); err != nil {
		t.Fatalf("the answer does not parse: %v: %x", err, out)
	}
	if m.Id != q.id || !m.Response || len(out) > q.size {
		t.Fatalf("id %x, response %v, %d bytes for a client of %d", m.Id, m.Response, len(out), q.size)
	}
	if whole && !bytes.Equal(out[headerLen:headerLen+len(q.wire)], q.wire) {
		t.Fatalf("the question was changed")
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok && a.A.String() != "203.0.113.1" {
			t.Fatalf("handed out %s", a.A)
		}
	}
}

// FuzzUpstreamReply puts what an upstream may answer through the reading, checking
// and packing of answers. Only checked addresses and whole messages may come out.
func FuzzUpstreamReply(f *testing.F) {
	for _, records := range []string{
		"a.test. 60 IN A 203.0.113.1", "a.test. 60 IN A 10.0.0.1", "a.test. 60 IN CNAME evil.test.",
		"a.test. 60 IN HTTPS 1 . alpn=h2 ipv4hint=10.0.0.1 ech=AEP+DQA/", "a.test. 60 IN AAAA ::1",
		"a.test. 60 IN CNAME b.test.\nb.test. 60 IN A 203.0.113.2", `a.test. 60 IN TXT "x"`, "a.test. 60 IN CNAME a.test.",
		"a.test. 60 IN SVCB 1 b.test. mandatory=alpn,ipv4hint alpn=h2 ipv4hint=127.0.0.1",
	} {
		var m dns.Msg
		m.SetQuestion("a.test.", dns.TypeA)
		m.Response = true
		for text := range strings.SplitSeq(records, "\n") {
			rr, err := dns.NewRR(text)
			if err != nil {
				f.Fatal(err)
			}
			m.Answer = append(m.Answer, rr)
			m.Question[0].Qtype = m.Answer[len(m.Answer)-1].Header().Rrtype
		}
		for _, m.Compress = range []bool{false, true} {
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b[2:headerLen], b[headerLen+12:], m.Question[0].Qtype)
		}
	}
	s := newBench(f, fuzzPolicy)
	p := s.cfg.Policy.Load()
	f.Fuzz(func(t *testing.T, header, sections []byte, qtype uint16) {
		var w query
		if err := w.build("a.test", qtype, true); err != nil {
			t.Fatal(err)
		}
		msg := append([]byte{w.buf[0], w.buf[1]}, header...)
		if len(msg) >= headerLen {
			msg = append(msg[:headerLen:headerLen], w.buf[headerLen:w.question]...)
			msg = append(msg, sections...)
		}
		if w.match(msg) == matchNone {
			return
		}
		var m dns.Msg
		_, isPlain := w.readPlain(msg)
		if m.Unpack(msg) != nil {
			if isPlain {
				t.Fatalf("read what does not parse: %x", msg)
			}
			return
		}
		var r records
		k := key{"a.test", qtype}
		if r.collect(k.name, qtype, &m) != nil || (m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError) {
			if isPlain {
				t.Fatalf("read what is no answer: %x", msg)
			}
			return
		}
		e, _, err := r.entry(k, 0, nil)
		if err != nil {
			return
		}
		checkPlain(t, s, &w, msg, e)
		v, err := s.viewOf(e, p)
		if err != nil {
			t.Fatalf("our own packing does not read: %v: %x", err, e.body)
		}
		if v.decision.Verdict == policy.Deny {
			return
		}
		given := checkGiven(t, p, k, answer{int(e.rcode), v.shown(e)})
		addrs := v.addrs(e)
		for _, list := range [][]netip.Addr{given, addrs} {
			slices.SortFunc(list, netip.Addr.Compare)
		}
		if !slices.Equal(given, addrs) || v.fresh(0) != (len(given) == 0) {
			t.Fatalf("handed out %v, attributed %v, before they are: %v", given, addrs, v.fresh(0))
		}
	})
}

// checkPlain asserts that a reply which is read in place is read as it is otherwise,
// and judged as it is otherwise.
func checkPlain(t *testing.T, s *Server, w *query, msg []byte, e *entry) {
	t.Helper()
	got, ok := w.readPlain(msg)
	if !ok {
		return
	}
	if e.rcode != dns.RcodeSuccess || got.sections != e.sections() || got.ttl != e.ttl {
		t.Fatalf("read in place %+v, parsed %+v", got, e)
	}
	p := s.cfg.Policy.Load()
	plain, allowed := s.inspectPlain(e, p)
	v, err := s.viewOf(e, p)
	if err != nil {
		t.Fatal(err)
	}
	if clean := v.decision.Verdict == policy.Allow && v.odd == nil; allowed != clean {
		t.Fatalf("in place all is allowed: %v, otherwise %v", allowed, clean)
	}
	if allowed && (plain.decision != v.decision || plain.fresh(0) != v.fresh(0)) {
		t.Fatalf("in place %+v, otherwise %+v", plain.decision, v.decision)
	}
}

// checkGiven asserts what may be in an answer at all, and gives its addresses.
func checkGiven(t *testing.T, p *policy.Compiled, k key, a answer) (given []netip.Addr) {
	t.Helper()
	wire, err := (&records{}).message(k).Pack()
	if err != nil {
		t.Fatal(err)
	}
	q := question{qtype: k.qtype, wire: wire[headerLen:]}
	out := respond(nil, &q, &reply{answer: a}, true)
	var m dns.Msg
	if err := m.Unpack(out); err != nil {
		t.Fatalf("the answer does not parse: %v: %x", err, out)
	}
	if len(m.Answer) != int(a.answers) || len(m.Ns) > 1 || len(m.Extra) != 0 {
		t.Fatalf("sections %v", &m)
	}
	give := func(ip []byte) {
		addr, ok := netip.AddrFromSlice(ip)
		if !ok || p.DecideAddress(k.name, addr.Unmap(), 0, policy.TCP, false).Verdict == policy.Deny {
			t.Fatalf("handed out %v", addr)
		}
		given = append(given, addr.Unmap())
	}
	bind := func(rr *dns.SVCB) {
		for _, kv := range rr.Value {
			switch kv := kv.(type) {
			case *dns.SVCBECHConfig:
				t.Fatal("handed out ech")
			case *dns.SVCBIPv4Hint:
				for _, ip := range kv.Hint {
					give(ip)
				}
			case *dns.SVCBIPv6Hint:
				for _, ip := range kv.Hint {
					give(ip)
				}
			}
		}
	}
	for _, rr := range m.Answer {
		if ttl := rr.Header().Ttl; ttl < minTTL || ttl > maxTTL {
			t.Fatalf("TTL %d", ttl)
		}
		switch rr := rr.(type) {
		case *dns.A:
			give(rr.A)
		case *dns.AAAA:
			give(rr.AAAA)
		case *dns.HTTPS:
			bind(&rr.SVCB)
		case *dns.SVCB:
			bind(rr)
		}
	}
	return given
}
