package audit

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/exeat/exeat/policy"
)

func TestAFloodOfDistinctDenialsIsBoundedAndCounted(t *testing.T) {
	const flood = 100_000
	c, out := newClock(), &syncBuffer{}
	l := New(Config{Now: c.now, Writer: out})
	for i := range flood {
		l.Record(denied(fmt.Sprintf("n%d.test", i)))
		if i%1000 == 0 {
			c.add(10 * time.Millisecond) // a second in all
		}
	}
	l.Record(Event{Kind: KindDecision, Verdict: policy.Allow, Reason: policy.ReasonRule, Name: "allowed.test", Port: 443})
	stats := l.Stats()
	closeLog(t, l)

	if stats.Targets != 50_000 {
		t.Errorf("%d targets, want 50000", stats.Targets)
	}
	if stats.Events > 4096+500*2 {
		t.Errorf("%d lines in a second, want at most the burst and the rate", stats.Events)
	}
	var counted, other uint64
	allowed := false
	for _, count := range l.Summary() {
		allowed = allowed || count.Target == "allowed.test:443"
		if count.Verdict == policy.Deny {
			counted += count.Count
		}
		if count.Target == OtherTarget {
			other += count.Count
		}
	}
	if counted != flood || other != flood-50_000+1 || !allowed {
		t.Errorf("counted %d, %d of them other; the allowed target has its own count: %v", counted, other, allowed)
	}
	var logged, folded, lost uint64
	for _, e := range out.lines(t) {
		switch {
		case e.Kind == KindLost:
			lost += e.Folded
		case e.Folded > 0:
			folded += e.Folded
			if e.Target() != "" || e.Message == "" {
				t.Errorf("the fold over the budget: %+v", e)
			}
		default:
			logged++
		}
	}
	if logged+folded != flood+1 || lost != 0 {
		t.Errorf("%d logged, %d folded, %d lost: want %d in all", logged, folded, lost, flood+1)
	}
}

func TestAFloodOfRepeatsHoldsBoundedFolds(t *testing.T) {
	c := newClock()
	l := newLog(t, Config{Now: c.now, Burst: 100_000})
	for range 3 {
		for i := range 2 * maxPending {
			l.Record(denied(fmt.Sprintf("n%d.test", i)))
		}
	}
	l.mu.Lock()
	pending := len(l.pending)
	l.mu.Unlock()
	if pending > maxPending+1 {
		t.Errorf("%d folds wait, want at most %d", pending, maxPending+1)
	}
}

func TestRepeatsFoldThoughTheCountersAreFull(t *testing.T) {
	c, out := newClock(), &syncBuffer{}
	l := New(Config{Now: c.now, Writer: out, MaxTargets: 1})
	l.Record(denied("first.test"))
	line := l.Record(denied("a.test"))
	for range 9 {
		if repeat := l.Record(denied("a.test")); repeat.ID != 0 || repeat.DecisionID != line.DecisionID {
			t.Fatalf("the repeat got decision %q and ID %d, want %q and 0", repeat.DecisionID, repeat.ID, line.DecisionID)
		}
	}
	if other := l.Record(denied("b.test")); other.ID == 0 || other.DecisionID == line.DecisionID {
		t.Errorf("another name was folded: %+v", other)
	}
	next := denied("a.test")
	next.Generation = 99
	if swapped := l.Record(next); swapped.ID == 0 || swapped.DecisionID == line.DecisionID {
		t.Errorf("another policy's denial was folded: %+v", swapped)
	}
	c.add(11 * time.Second)
	if later := l.Record(denied("b.test")); later.ID == 0 {
		t.Error("a repeat after the window was folded")
	}
	var counted uint64
	for _, count := range l.Summary() {
		counted += count.Count
	}
	closeLog(t, l)
	if counted != 14 {
		t.Errorf("counted %d, want 14", counted)
	}
	var folds []Event
	for _, e := range out.lines(t) {
		if e.Folded > 0 {
			folds = append(folds, e)
		}
	}
	if len(folds) != 1 || folds[0].Folded != 9 || folds[0].Name != "a.test" || folds[0].DecisionID != line.DecisionID {
		t.Errorf("folds %+v, want 9 of a.test", folds)
	}
}

func TestWhatIsKnownOfUncountedTargetsIsBounded(t *testing.T) {
	c := newClock()
	l := newLog(t, Config{Now: c.now, MaxTargets: 1, Burst: 100_000})
	for range 2 {
		for i := range 4 * maxUncounted {
			l.Record(denied(fmt.Sprintf("n%d.test", i)))
		}
	}
	known := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.uncounted)
	}
	if n := known(); n != maxUncounted {
		t.Errorf("%d are known, want %d", n, maxUncounted)
	}
	c.add(11 * time.Second)
	l.mu.Lock()
	l.endFolds(c.now(), false)
	l.mu.Unlock()
	if n := known(); n != 0 {
		t.Errorf("%d are known after the window, want none", n)
	}
}

func TestTotals(t *testing.T) {
	l := newLog(t, Config{MaxTargets: 1})
	for i := range 3 {
		l.Record(denied(fmt.Sprintf("n%d.test", i)))
	}
	l.Record(Event{Kind: KindError, Name: "a.test", Port: 443, Error: ErrorUnreachable})
	want := []Total{{Error: ErrorUnreachable, Count: 1}, {Reason: policy.ReasonUnlisted, Count: 3}}
	got := l.Totals()
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("totals %+v, want %+v", got, want)
	}
}

func TestAFlowThatFailsIsCountedAsAFailure(t *testing.T) {
	l := newLog(t, Config{})
	l.Record(Event{
		Kind: KindFlow, Verdict: policy.Allow, Reason: policy.ReasonRule, Name: "a.test", Port: 443, BytesIn: 7,
		Error: ErrorUpstreamReset,
	})
	if totals := l.Totals(); len(totals) != 1 || totals[0] != (Total{Error: ErrorUpstreamReset, Count: 1}) {
		t.Errorf("totals %+v", totals)
	}
	if summary := l.Summary(); len(summary) != 2 || summary[0].Error != ErrorUpstreamReset || summary[1].BytesIn != 7 {
		t.Errorf("summary %+v", summary)
	}
}

func TestSummaryTellsTargetsApart(t *testing.T) {
	addr := netip.MustParseAddr("2001:db8::1")
	tests := map[string]struct {
		event Event
		want  string
	}{
		"a name with its port":              {denied("a.test"), "a.test:443"},
		"a DNS question has no port":        {Event{Kind: KindDecision, Channel: ChannelDNS, Name: "a.test", Port: 53, Protocol: policy.UDP}, "a.test"},
		"an address where nothing is named": {Event{Kind: KindDecision, Addr: addr, Port: 53, Protocol: policy.UDP}, "[2001:db8::1]:53/udp"},
		"an address is left out of a name":  {Event{Kind: KindDecision, Name: "a.test", Addr: addr, Port: 22}, "a.test:22"},
		"ICMP has no port":                  {Event{Kind: KindDecision, Addr: addr, Protocol: policy.ICMP}, "2001:db8::1/icmp"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLog(t, Config{})
			l.Record(tt.event)
			summary := l.Summary()
			if len(summary) != 1 || summary[0].Target != tt.want || summary[0].Count != 1 {
				t.Fatalf("summary %+v, want one of %q", summary, tt.want)
			}
			data, err := json.Marshal(summary[0])
			if err != nil {
				t.Fatal(err)
			}
			var back Count
			if err := json.Unmarshal(data, &back); err != nil {
				t.Fatal(err)
			}
			if back.Target != tt.want || back.Protocol != tt.event.Protocol && tt.event.Channel != ChannelDNS {
				t.Errorf("%s reads back as %+v", data, back)
			}
		})
	}
}

func BenchmarkRecordRepeat(b *testing.B) {
	l := New(Config{})
	defer func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	}()
	e := denied("files.example.test")
	b.ReportAllocs()
	for b.Loop() {
		l.Record(e)
	}
}

func BenchmarkRecordDistinct(b *testing.B) {
	l := New(Config{})
	defer func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	}()
	names := make([]string, 1<<17)
	for i := range names {
		names[i] = fmt.Sprintf("n%d.test", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Record(denied(names[i%len(names)]))
	}
}
