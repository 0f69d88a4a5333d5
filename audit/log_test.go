package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/exeat/exeat/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// syncBuffer may be read while a log writes to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) lines(t *testing.T) []Event {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []Event
	for _, line := range strings.Split(strings.TrimSuffix(s.b.String(), "\n"), "\n") {
		if line == "" {
			continue
		}
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		events = append(events, e)
	}
	return events
}

func newLog(t *testing.T, c Config) *Log {
	t.Helper()
	l := New(c)
	t.Cleanup(func() { closeLog(t, l) })
	return l
}

func closeLog(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func denied(name string) Event {
	return Event{Kind: KindDecision, Channel: ChannelTLS, Name: name, Port: 443, Reason: policy.ReasonUnlisted, Generation: 1}
}

func TestRecordFillsWhatIsUnset(t *testing.T) {
	c := newClock()
	l := newLog(t, Config{Now: c.now, Phase: func() string { return "run" }})
	first := l.Record(denied("a.test"))
	second := l.Record(denied("b.test"))
	if first.ID != 1 || second.ID != 2 {
		t.Errorf("IDs %d, %d: want 1, 2", first.ID, second.ID)
	}
	if first.Phase != "run" || !first.Time.Equal(c.now()) {
		t.Errorf("phase %q, time %v", first.Phase, first.Time)
	}
	prefix, number, ok := strings.Cut(second.DecisionID, "-")
	if !ok || len(prefix) != 6 || number != "2" || !strings.HasPrefix(first.DecisionID, prefix) {
		t.Errorf("decision ids %q, %q: want one prefix of six and a count", first.DecisionID, second.DecisionID)
	}
	if swap := l.Record(Event{Kind: KindSwap}); swap.DecisionID != "" {
		t.Errorf("a swap got the decision id %q", swap.DecisionID)
	}
	if id := l.NewDecisionID(); id != prefix+"-3" {
		t.Errorf("NewDecisionID = %q, want %s-3", id, prefix)
	}
}

func TestFolding(t *testing.T) {
	tests := map[string]struct {
		do   func(l *Log, c *clock)
		want []string // "target reason folded"
	}{
		"the first is logged at once, the repeats in one line when the window is over": {
			do: func(l *Log, _ *clock) {
				for range 5 {
					l.Record(denied("a.test"))
				}
			},
			want: []string{"a.test:443 unlisted 0", "a.test:443 unlisted 4"},
		},
		"distinct denials each have their line": {
			do: func(l *Log, _ *clock) {
				l.Record(denied("a.test"))
				l.Record(denied("b.test"))
			},
			want: []string{"a.test:443 unlisted 0", "b.test:443 unlisted 0"},
		},
		"another reason is another event": {
			do: func(l *Log, _ *clock) {
				l.Record(denied("a.test"))
				e := denied("a.test")
				e.Reason = policy.ReasonECH
				l.Record(e)
			},
			want: []string{"a.test:443 unlisted 0", "a.test:443 encrypted-client-hello 0"},
		},
		"a repeat after the window is logged at once, after what was folded before it": {
			do: func(l *Log, c *clock) {
				l.Record(denied("a.test"))
				l.Record(denied("a.test"))
				c.add(11 * time.Second)
				l.Record(denied("a.test"))
			},
			want: []string{"a.test:443 unlisted 0", "a.test:443 unlisted 1", "a.test:443 unlisted 0"},
		},
		"a swap begins anew: the same denial by the next generation has its line": {
			do: func(l *Log, _ *clock) {
				l.Record(denied("a.test"))
				e := denied("a.test")
				e.Generation = 2
				l.Record(e)
			},
			want: []string{"a.test:443 unlisted 0", "a.test:443 unlisted 0"},
		},
		"swaps are never folded": {
			do: func(l *Log, _ *clock) {
				l.Record(Event{Kind: KindSwap, Generation: 2})
				l.Record(Event{Kind: KindSwap, Generation: 2})
			},
			want: []string{"  0", "  0"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, out := newClock(), &syncBuffer{}
			l := New(Config{Now: c.now, Writer: out})
			tt.do(l, c)
			closeLog(t, l)
			var got []string
			for _, e := range out.lines(t) {
				got = append(got, fmt.Sprintf("%s %s %d", e.Target(), e.Reason, e.Folded))
			}
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestAFoldedRepeatQuotesTheLineThatStandsForIt(t *testing.T) {
	c, out := newClock(), &syncBuffer{}
	l := New(Config{Now: c.now, Writer: out})
	first := l.Record(denied("a.test"))
	c.add(2 * time.Second)
	repeat := l.Record(denied("a.test"))
	c.add(3 * time.Second)
	l.Record(denied("a.test"))
	closeLog(t, l)
	if repeat.DecisionID != first.DecisionID || repeat.ID != 0 {
		t.Errorf("the repeat got decision %q and ID %d, want %q and 0", repeat.DecisionID, repeat.ID, first.DecisionID)
	}
	fold := out.lines(t)[1]
	if fold.Folded != 2 || fold.DecisionID != first.DecisionID {
		t.Errorf("fold %+v", fold)
	}
	if span := fold.Time.Sub(fold.Since); span != 3*time.Second {
		t.Errorf("the fold spans %v, want 3s", span)
	}
}

func TestAFoldIsWrittenThoughNothingMoreHappens(t *testing.T) {
	out := &syncBuffer{}
	l := newLog(t, Config{Writer: out, FoldWindow: 20 * time.Millisecond})
	sub := l.Subscribe(0, 4)
	defer sub.Close()
	l.Record(denied("a.test"))
	l.Record(denied("a.test"))
	<-sub.C()
	select {
	case e := <-sub.C():
		if e.Folded != 1 {
			t.Errorf("got %+v, want a fold of 1", e)
		}
	case <-time.After(30 * time.Second):
		t.Error("the fold did not come")
	}
}

func TestFoldedFlowsKeepTheirBytes(t *testing.T) {
	c, out := newClock(), &syncBuffer{}
	l := New(Config{Now: c.now, Writer: out})
	for range 30 {
		l.Record(Event{
			Kind: KindFlow, Verdict: policy.Allow, Reason: policy.ReasonRule, Name: "a.test", Port: 443,
			BytesOut: 10, BytesIn: 100, Duration: time.Second,
		})
	}
	closeLog(t, l)
	var lines int
	var out64, in64 uint64
	for _, e := range out.lines(t) {
		lines++
		out64 += e.BytesOut
		in64 += e.BytesIn
	}
	if lines != flowLines+1 || out64 != 300 || in64 != 3000 {
		t.Errorf("%d lines with %d bytes out and %d in: want %d, 300, 3000", lines, out64, in64, flowLines+1)
	}
	count := l.Summary()[0]
	if count.BytesOut != 300 || count.BytesIn != 3000 || count.Count != 0 {
		t.Errorf("counted %+v: a flow has bytes and no decision", count)
	}
}

func TestRecordIsRaceClean(t *testing.T) {
	out := &syncBuffer{}
	l := New(Config{Writer: out, FoldWindow: time.Millisecond, RingSize: 64})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			sub := l.Subscribe(0, 1)
			defer sub.Close()
			for i := range 500 {
				l.Record(denied(fmt.Sprintf("n%d.test", (i*g)%50)))
				if i%100 == 0 {
					l.Summary()
					<-sub.C()
				}
			}
		})
	}
	wg.Wait()
	closeLog(t, l)
	var counted uint64
	for _, c := range l.Summary() {
		counted += c.Count
	}
	if counted != 2000 {
		t.Errorf("counted %d, want 2000", counted)
	}
}
