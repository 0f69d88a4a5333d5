package audit

import (
	"cmp"
	"crypto/rand"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/exeat/exeat/policy"
)

// Config is what a Log is made of. The zero value works: it keeps the ring and
// the counters and writes nothing.
type Config struct {
	// Writer gets the JSON lines; nil writes none. One goroutine writes to it, so
	// a slow writer delays no decision; one that falls behind by the whole ring
	// loses lines, and a line of kind lost says how many.
	Writer io.Writer
	// RingSize is how many events are kept for readers (default 8,192).
	RingSize int
	// MaxTargets bounds the counters (default 50,000); what comes after is counted
	// under OtherTarget.
	MaxTargets int
	// FoldWindow is how long repeats are held together (default 10 s).
	FoldWindow time.Duration
	// Rate and Burst bound the lines a second that distinct events of one kind and
	// verdict may add (default 500 and 4,096); what exceeds them is folded by
	// reason.
	Rate, Burst int
	// Phase gives the phase that an event without one belongs to; nil is none.
	Phase func() string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Stats are figures about the log itself.
type Stats struct {
	// Events is how many were logged, Folded how many had no line of their own.
	Events, Folded uint64
	// Unwritten is how many lines the writer was too slow for or failed to write.
	Unwritten uint64
	// Targets is how many counters are in use.
	Targets int
}

// Log records events. Its methods are safe for concurrent use. There is one
// lock, mu; nothing is called with it held but Config.Now.
type Log struct {
	phase  func() string
	now    func() time.Time
	began  time.Time
	window time.Duration
	prefix string
	writer *lineWriter

	mu       sync.Mutex
	grown    *sync.Cond // on mu: an event was pushed, or something was closed
	ring     ring
	decision uint64
	counters counters
	pending  []*fold
	overflow map[overflowKey]*fold
	// uncounted are the repeats of targets that the counters have no room for.
	uncounted map[key]*fold
	situation *situation // the last
	budgets   [budgets]bucket
	stats     Stats
	closed    bool

	stop    chan struct{}
	workers sync.WaitGroup
}

// New makes a Log and starts its goroutines; Close ends them.
func New(c Config) *Log {
	l := &Log{
		phase: c.Phase, now: c.Now,
		window:   cmp.Or(c.FoldWindow, 10*time.Second),
		ring:     ring{size: uint64(cmp.Or(c.RingSize, 8192))},
		prefix:   strings.ToLower(rand.Text()[:6]) + "-",
		counters: newCounters(cmp.Or(c.MaxTargets, 50_000)),
		overflow: map[overflowKey]*fold{}, uncounted: map[key]*fold{},
		stop: make(chan struct{}),
	}
	if l.now == nil {
		l.now = time.Now
	}
	l.began = l.now()
	for i := range l.budgets {
		l.budgets[i] = bucket{rate: float64(cmp.Or(c.Rate, 500)), burst: float64(cmp.Or(c.Burst, 4096))}
	}
	l.grown = sync.NewCond(&l.mu)
	l.workers.Go(l.endFoldsInTime)
	if c.Writer != nil {
		l.writer = newLineWriter(l, c.Writer)
		go l.writer.run()
	}
	return l
}

// NewDecisionID gives the next decision id, such as "k3f9w2-17": the ids of one
// start have one random prefix and count up.
func (l *Log) NewDecisionID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nextDecisionID()
}

func (l *Log) nextDecisionID() string {
	l.decision++
	return l.prefix + strconv.FormatUint(l.decision, 10)
}

// Record fills what is unset of ID, Time, Phase and (for a decision) DecisionID,
// counts e, and logs it or folds it into others, in which case the ID stays 0.
// It never blocks on a reader or on the writer.
func (l *Log) Record(e Event) Event {
	e.clean()
	if e.Time.IsZero() {
		e.Time = l.now()
	}
	e.Time = e.Time.Round(0)
	if e.Phase == "" && l.phase != nil {
		e.Phase = cleanText(l.phase(), maxWord, isPlain)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if countable(e.Kind) {
		c, known := l.counters.add(&e)
		if e.Kind == KindFlow && e.Error != "" {
			failure := e
			failure.Kind = KindError
			l.counters.add(&failure)
		}
		if !l.admit(&e, c, known) {
			return e
		}
	}
	l.push(&e)
	return e
}

// countable says whether events of this kind come as fast as the sandbox likes.
func countable(k Kind) bool { return k == KindDecision || k == KindFlow || k == KindError }

func (l *Log) fillDecision(e *Event) {
	if e.DecisionID == "" && e.Kind == KindDecision {
		e.DecisionID = l.nextDecisionID()
	}
}

// push appends to the ring, under mu.
func (l *Log) push(e *Event) {
	l.stats.Events++
	l.ring.push(e)
	l.grown.Broadcast()
}

// The budgets: no kind of event can use up another's lines.
const (
	budgetDeny = iota
	budgetAllow
	budgetFlow
	budgetError
	budgets
)

func (l *Log) budget(e *Event) *bucket {
	switch {
	case e.Kind == KindFlow:
		return &l.budgets[budgetFlow]
	case e.Kind == KindError:
		return &l.budgets[budgetError]
	case e.Verdict == policy.Allow:
		return &l.budgets[budgetAllow]
	default:
		return &l.budgets[budgetDeny]
	}
}

// Stats gives the figures of the log itself.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Targets = l.counters.size
	return s
}

// Health is the last failure of the writer, nil while it writes.
func (l *Log) Health() error {
	if l.writer == nil {
		return nil
	}
	return l.writer.health()
}

// endFoldsInTime logs what was folded when its window is over, though nothing
// more may happen.
func (l *Log) endFoldsInTime() {
	tick := time.NewTicker(max(l.window/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			l.mu.Lock()
			l.endFolds(l.now(), false)
			l.mu.Unlock()
		}
	}
}

// Close writes what is folded and queued, ends every subscription, and waits for
// the writer: at most 5 s, as one that is stuck must not hold up an exit. Events
// recorded later are counted and not written.
func (l *Log) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.endFolds(time.Time{}, true)
		close(l.stop)
		l.grown.Broadcast()
	}
	l.mu.Unlock()
	l.workers.Wait()
	if l.writer == nil {
		return nil
	}
	return l.writer.wait(5 * time.Second)
}
