package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/exeat/exeat/policy"
)

// OtherTarget is the target of what exceeded Config.MaxTargets.
const OtherTarget = "other"

// Count is how often one target met one verdict for one reason, or one error.
type Count struct {
	// Target is as Event.Target writes it, or OtherTarget.
	Target string
	Name   string
	// Addr is set where nothing was named.
	Addr netip.Addr
	// Port is 0 for DNS questions.
	Port     uint16
	Protocol policy.Protocol
	Verdict  policy.Verdict
	Reason   policy.Reason
	// Error is set on the counts of failures, which have no verdict.
	Error    string
	Count    uint64
	BytesOut uint64
	BytesIn  uint64
	First    time.Time
	Last     time.Time
}

// Total is how often one verdict fell for one reason, or one error happened.
type Total struct {
	Verdict policy.Verdict
	Reason  policy.Reason
	Error   string
	Count   uint64
}

// outcome is what a count is of, beside its target.
type outcome struct {
	verdict policy.Verdict
	reason  policy.Reason
	failure string
}

// target is what an event is about, as the counters see it: an address only
// where nothing was named, no port and protocol for a DNS question.
type target struct {
	name     string
	addr     netip.Addr
	port     uint16
	protocol policy.Protocol
}

type key struct {
	target
	outcome
}

func keyOf(e *Event) key {
	k := key{target: target{name: e.Name, port: e.Port, protocol: e.Protocol}}
	if e.Name == "" {
		k.addr = e.Addr
	}
	if e.Channel == ChannelDNS {
		k.port, k.protocol = 0, policy.TCP
	}
	if e.Kind == KindError {
		k.failure = failureWord(e.Error)
		return k
	}
	k.verdict, k.reason = e.Verdict, e.Reason
	return k
}

// failureWord keeps the counters to the fixed words.
func failureWord(word string) string {
	switch word {
	case ErrorUnresolvable, ErrorUnreachable, ErrorUpstreamReset:
		return word
	}
	return "other"
}

// cell holds the counters of one key, and what the log remembers of it.
type cell struct {
	count, bytesOut, bytesIn uint64
	first, last              time.Time
	// of a decision or error, and of flows
	repeats, flows fold
}

func (c *cell) add(e *Event) {
	switch e.Kind {
	case KindFlow:
		// a flow's decision has been counted when it was opened
		c.bytesOut += e.BytesOut
		c.bytesIn += e.BytesIn
	default:
		c.count++
	}
	if c.first.IsZero() || e.Time.Before(c.first) {
		c.first = e.Time
	}
	if e.Time.After(c.last) {
		c.last = e.Time
	}
}

// counters never drop a count: what has no room of its own is in other. An
// allowed target takes the room of the oldest denied one, so that a flood of
// denied names can't hide what the sandbox really uses. Guarded by Log.mu.
type counters struct {
	max    int
	cells  map[key]*cell
	other  map[outcome]*cell
	totals map[outcome]uint64
	// denied are the keys that may give way, oldest first.
	denied []key
}

func newCounters(limit int) counters {
	return counters{max: limit, cells: map[key]*cell{}, other: map[outcome]*cell{}, totals: map[outcome]uint64{}}
}

// add counts e. known is false where it was counted under other.
func (c *counters) add(e *Event) (at *cell, known bool) {
	k := keyOf(e)
	if e.Kind != KindFlow {
		c.totals[k.outcome]++
	}
	at, known = c.cells[k]
	if !known && c.room(k) {
		at, known = &cell{}, true
		c.cells[k] = at
	}
	if !known {
		at = c.otherOf(k.outcome)
	}
	at.add(e)
	return at, known
}

func (c *counters) otherOf(o outcome) *cell {
	at := c.other[o]
	if at == nil {
		at = &cell{}
		c.other[o] = at
	}
	return at
}

// room says whether k may have a cell of its own, and makes room for it.
func (c *counters) room(k key) bool {
	denied := k.verdict == policy.Deny // errors too
	if len(c.cells) >= c.max {
		if denied || len(c.denied) == 0 {
			return false
		}
		oldest := c.denied[0]
		c.denied = c.denied[1:]
		c.otherOf(oldest.outcome).merge(c.cells[oldest])
		delete(c.cells, oldest)
	}
	if denied {
		c.denied = append(c.denied, k)
	}
	return true
}

func (c *cell) merge(from *cell) {
	c.count += from.count
	c.bytesOut += from.bytesOut
	c.bytesIn += from.bytesIn
	if c.first.IsZero() || from.first.Before(c.first) {
		c.first = from.first
	}
	if from.last.After(c.last) {
		c.last = from.last
	}
}

func (c *cell) export(k key) Count {
	return Count{
		Name: k.name, Addr: k.addr, Port: k.port, Protocol: k.protocol,
		Verdict: k.verdict, Reason: k.reason, Error: k.failure,
		Count: c.count, BytesOut: c.bytesOut, BytesIn: c.bytesIn, First: c.first, Last: c.last,
	}
}

// Summary gives every count, the most frequent first.
func (l *Log) Summary() []Count {
	l.mu.Lock()
	counts := make([]Count, 0, len(l.counters.cells)+len(l.counters.other))
	for k, c := range l.counters.cells {
		counts = append(counts, c.export(k))
	}
	for o, c := range l.counters.other {
		count := c.export(key{outcome: o})
		count.Target = OtherTarget
		counts = append(counts, count)
	}
	l.mu.Unlock()
	for i := range counts {
		if c := &counts[i]; c.Target == "" {
			c.Target = targetText(c.Name, c.Addr, c.Port, c.Protocol)
		}
	}
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Target, b.Target),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Error, b.Error))
	})
	return counts
}

// Totals gives the sums over all targets, in a fixed order.
func (l *Log) Totals() []Total {
	l.mu.Lock()
	totals := make([]Total, 0, len(l.counters.totals))
	for o, n := range l.counters.totals {
		totals = append(totals, Total{Verdict: o.verdict, Reason: o.reason, Error: o.failure, Count: n})
	}
	l.mu.Unlock()
	slices.SortFunc(totals, func(a, b Total) int {
		return cmp.Or(cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Error, b.Error))
	})
	return totals
}

// countLine is a Count as JSON writes it.
type countLine struct {
	Target   string           `json:"target"`
	Name     string           `json:"name,omitempty"`
	Addr     netip.Addr       `json:"addr,omitzero"`
	Port     uint16           `json:"port,omitempty"`
	Protocol *policy.Protocol `json:"protocol,omitempty"`
	Verdict  *policy.Verdict  `json:"verdict,omitempty"`
	Reason   policy.Reason    `json:"reason,omitempty"`
	Error    string           `json:"error,omitempty"`
	Count    uint64           `json:"count"`
	BytesOut uint64           `json:"bytes_out,omitempty"`
	BytesIn  uint64           `json:"bytes_in,omitempty"`
	First    time.Time        `json:"first"`
	Last     time.Time        `json:"last"`
}

// MarshalJSON leaves out the verdict of a failure, and the protocol where there
// is no port to belong to.
func (c Count) MarshalJSON() ([]byte, error) {
	l := countLine{
		Target: c.Target, Name: c.Name, Addr: c.Addr, Port: c.Port, Reason: c.Reason, Error: c.Error,
		Count: c.Count, BytesOut: c.BytesOut, BytesIn: c.BytesIn, First: c.First.UTC(), Last: c.Last.UTC(),
	}
	if c.Port != 0 || c.Protocol != policy.TCP {
		l.Protocol = &c.Protocol
	}
	if c.Error == "" {
		l.Verdict = &c.Verdict
	}
	return json.Marshal(l)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Count) UnmarshalJSON(data []byte) error {
	var l countLine
	if err := json.Unmarshal(data, &l); err != nil {
		return fmt.Errorf("count: %w", err)
	}
	*c = Count{
		Target: l.Target, Name: l.Name, Addr: l.Addr, Port: l.Port, Reason: l.Reason, Error: l.Error,
		Count: l.Count, BytesOut: l.BytesOut, BytesIn: l.BytesIn, First: l.First, Last: l.Last,
	}
	if l.Verdict != nil {
		c.Verdict = *l.Verdict
	}
	if l.Protocol != nil {
		c.Protocol = *l.Protocol
	}
	return nil
}
