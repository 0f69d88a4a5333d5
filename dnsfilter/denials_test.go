package dnsfilter

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/policy"
)

// A denial that is remembered is answered as one that is not: for its name and type,
// under its policy, in whatever letter case, and logged each time.
func TestARememberedDenialIsOnlyForItsQuestionAndPolicy(t *testing.T) {
	allows := func(name string) *policy.Compiled {
		target, err := policy.ParseTarget(name)
		if err != nil {
			t.Fatal(err)
		}
		return policy.Compile(policy.Document{Mode: policy.ModeAllowlist, Allowed: []policy.Target{target}}, policy.Options{})
	}
	one, other := allows("a.test"), allows("b.test")
	var d denials
	parsed := func(name string, qtype uint16) *question {
		var m dns.Msg
		m.SetQuestion(dns.Fqdn(name), qtype)
		msg, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		q := new(question)
		if err := q.parse(msg); err != nil {
			t.Fatal(err)
		}
		return q
	}
	q := parsed("B.test", dns.TypeA)
	d.put(q, &denial{policy: one, qtype: dns.TypeA, outcome: outcome{name: "b.test"}})
	for _, c := range []struct {
		about string
		p     *policy.Compiled
		name  string
		qtype uint16
		known bool
	}{
		{"the question again", one, "b.test", dns.TypeA, true},
		{"in another letter case", one, "b.TEST", dns.TypeA, true},
		{"under another policy", other, "b.test", dns.TypeA, false},
		{"of another type", one, "b.test", dns.TypeAAAA, false},
		{"a name below", one, "x.b.test", dns.TypeA, false},
	} {
		t.Run(c.about, func(t *testing.T) {
			if got := d.get(c.p, parsed(c.name, c.qtype)); (got != nil) != c.known {
				t.Errorf("known %v, want %v", got != nil, c.known)
			}
		})
	}
}

// What many names leave behind is bounded by the places.
func TestDenialsOfManyNamesAreAnsweredOneByOne(t *testing.T) {
	s := newBench(t, fuzzPolicy)
	for round := range 2 {
		for i := range 4 * denialsKept {
			var q question
			if err := q.parse(benchQuestion(t, fmt.Sprintf("n%d.other.test", i), dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			r, done := s.answerNow(&q, time.Now())
			if !done || r.rcode != dns.RcodeNameError || r.edeCode != dns.ExtendedErrorCodeBlocked || r.edeID == "" {
				t.Fatalf("round %d, name %d: %+v, %v", round, i, r, done)
			}
		}
	}
}
