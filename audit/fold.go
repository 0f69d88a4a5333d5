package audit

import "time"

const (
	// flowLines is how many flows of one target have a line of their own in a
	// window: a flow's bytes and duration are worth more than a repeat.
	flowLines = 20
	// maxPending bounds the folded lines that wait to be written; repeats beyond
	// it are folded by reason.
	maxPending = 4096
	// maxUncounted bounds the targets whose repeats are known though the counters
	// have no room for them.
	maxUncounted = 1024
)

// fold is what the log remembers of events alike within one window. The zero
// value remembers nothing. Guarded by Log.mu.
type fold struct {
	under *situation
	start time.Duration // since the log began
	// id is that of the line that the repeats are told of.
	id   string
	line *pending
}

// situation is what events must have in common to be folded, one for many folds.
type situation struct {
	generation uint64
	phase      string
}

// situationOf gives e's, the last one again where it is the same.
func (l *Log) situationOf(e *Event) *situation {
	if s := l.situation; s == nil || s.generation != e.Generation || s.phase != e.Phase {
		l.situation = &situation{generation: e.Generation, phase: e.Phase}
	}
	return l.situation
}

// newFold is of what comes after e, which has its line.
func (l *Log) newFold(e *Event, now time.Time, id string) fold {
	return fold{under: l.situationOf(e), start: now.Sub(l.began), id: id}
}

// pending is a folded line that is not written yet: its last event, the sums.
type pending struct {
	last  Event
	since time.Time
	n     uint64
}

func (l *Log) covers(f *fold, e *Event, now time.Time) bool {
	return f.under != nil && l.within(f, now) && f.under.generation == e.Generation && f.under.phase == e.Phase
}

// within says whether f's window is open.
func (l *Log) within(f *fold, now time.Time) bool {
	age := now.Sub(l.began) - f.start
	return age >= 0 && age < l.window
}

// admit decides under Log.mu whether e has a line of its own. If not, it is in
// some fold, and e.DecisionID is that of the line that will stand for it.
func (l *Log) admit(e *Event, c *cell, known bool) bool {
	now := l.now()
	if !known && e.Kind == KindFlow {
		return l.admitOther(e, now)
	}
	if !known {
		return l.admitUncounted(e, now)
	}
	f := &c.repeats
	if e.Kind == KindFlow {
		f = &c.flows.lines
	}
	if !l.covers(f, e, now) {
		l.endFold(f)
		if !l.admitOther(e, now) {
			return false
		}
		*f = l.newFold(e, now, e.DecisionID)
		if e.Kind == KindFlow {
			c.flows.logged = 1
		}
		return true
	}
	if e.Kind == KindFlow && c.flows.logged < flowLines && l.budget(e).take(now) {
		c.flows.logged++
		return true
	}
	if f.line == nil && len(l.pending) >= maxPending {
		l.foldOther(e, now)
		return false
	}
	l.addTo(f, e)
	return false
}

// admitUncounted is admit for a target that has no counter: full counters must not
// make a repeat a line.
func (l *Log) admitUncounted(e *Event, now time.Time) bool {
	k := l.counters.keyOf(e)
	f := l.uncounted[k]
	if f != nil && l.covers(f, e, now) {
		if f.line == nil && len(l.pending) >= maxPending {
			l.foldOther(e, now)
		} else {
			l.addTo(f, e)
		}
		return false
	}
	if f != nil {
		l.endFold(f)
	}
	if !l.admitOther(e, now) {
		return false
	}
	if f == nil && len(l.uncounted) < maxUncounted {
		f = &fold{}
		l.uncounted[k] = f
	}
	if f != nil {
		*f = l.newFold(e, now, e.DecisionID)
	}
	return true
}

// admitOther lets e have a line while there is budget for it.
func (l *Log) admitOther(e *Event, now time.Time) bool {
	if l.budget(e).take(now) {
		l.fillDecision(e)
		return true
	}
	l.foldOther(e, now)
	return false
}

// foldOther folds e with all that is over the budget for the same reason.
func (l *Log) foldOther(e *Event, now time.Time) {
	k := overflowKey{kind: e.Kind, outcome: outcome{verdict: e.Verdict, reason: e.Reason}}
	f := l.overflow[k]
	if f == nil {
		f = &fold{}
		l.overflow[k] = f
	}
	if !l.covers(f, e, now) {
		l.endFold(f)
		*f = l.newFold(e, now, l.nextDecisionID())
	}
	reduced := Event{
		Time: e.Time, Kind: e.Kind, DecisionID: e.DecisionID, Verdict: e.Verdict, Reason: e.Reason,
		Generation: e.Generation, Phase: e.Phase, BytesOut: e.BytesOut, BytesIn: e.BytesIn,
		Message: "more than the log may grow by: they are in the summary, under their targets as far as it has room",
	}
	l.addTo(f, &reduced)
	e.DecisionID = reduced.DecisionID
}

// addTo folds e into f.
func (l *Log) addTo(f *fold, e *Event) {
	if e.DecisionID == "" {
		e.DecisionID = f.id
	}
	if f.line == nil {
		f.line = &pending{since: e.Time}
		l.pending = append(l.pending, f)
	}
	p := f.line
	out, in := p.last.BytesOut+e.BytesOut, p.last.BytesIn+e.BytesIn
	p.last = *e
	p.last.BytesOut, p.last.BytesIn, p.last.DecisionID = out, in, f.id
	p.n++
	l.stats.Folded++
}

// endFold logs what is folded in f, and forgets it.
func (l *Log) endFold(f *fold) {
	if p := f.line; p != nil {
		e := p.last
		e.Folded, e.Since = p.n, p.since
		l.push(&e)
	}
	*f = fold{}
}

// endFolds ends the folds whose window is over at now, or all of them.
func (l *Log) endFolds(now time.Time, all bool) {
	kept := l.pending[:0]
	for _, f := range l.pending {
		switch {
		case f.line == nil: // ended when its successor began
		case all || !l.within(f, now):
			l.endFold(f)
		default:
			kept = append(kept, f)
		}
	}
	clear(l.pending[len(kept):])
	l.pending = kept
	for k, f := range l.uncounted {
		if f.line == nil && !l.within(f, now) {
			delete(l.uncounted, k)
		}
	}
}

// overflowKey tells apart what is folded without its target.
type overflowKey struct {
	kind Kind
	outcome
}

// bucket is a token bucket; the zero time fills it.
type bucket struct {
	rate, burst, tokens float64
	at                  time.Time
}

func (b *bucket) take(now time.Time) bool {
	if b.at.IsZero() {
		b.tokens = b.burst
	} else if elapsed := now.Sub(b.at); elapsed > 0 {
		b.tokens = min(b.burst, b.tokens+elapsed.Seconds()*b.rate)
	}
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
