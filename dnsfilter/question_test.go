package dnsfilter

import (
	"bytes"
	"testing"

	"github.com/miekg/dns"
)

// A question that waits shares no byte with the message that it came in, nor with
// the question whose room it took.
func TestAQuestionThatWaitsIsItsOwn(t *testing.T) {
	var q, waits question
	var before []byte
	for _, name := range []string{"a-long-name.for-the-first.test", "b.test", "another-long-name.for-the-third.test"} {
		msg := benchQuestion(t, name, dns.TypeAAAA)
		if err := q.parse(msg); err != nil {
			t.Fatal(err)
		}
		q.copyTo(&waits)
		want := bytes.Clone(q.wire)
		for i := range msg {
			msg[i] = 0xFF
		}
		if err := q.parse(benchQuestion(t, "else.test", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		if string(waits.lower) != name || !bytes.Equal(waits.wire, want) || waits.qtype != dns.TypeAAAA || !waits.edns {
			t.Errorf("%s: the copy is %q, %x", name, waits.lower, waits.wire)
		}
		c := waits.clone()
		c.wire[0]++
		c.lower[0]++
		if string(waits.lower) != name || !bytes.Equal(waits.wire, want) || bytes.Equal(want, before) {
			t.Errorf("%s: a clone shares its bytes", name)
		}
		before = want
	}
}
