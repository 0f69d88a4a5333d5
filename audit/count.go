package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/maphash"
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

// key is what an event is about, as the counters see it, and what became of it: an
// address only where nothing was named, no port and protocol for a DNS question.
type key struct {
	name     string
	addr     netip.Addr
	port     uint16
	protocol policy.Protocol
	outcome  uint32 // its number
}

func outcomeOf(e *Event) outcome {
	if e.Kind == KindError {
		return outcome{failure: failureWord(e.Error)}
	}
	return outcome{verdict: e.Verdict, reason: e.Reason}
}

// failureWord keeps the counters to the fixed words.
func failureWord(word string) string {
	switch word {
	case ErrorUnresolvable, ErrorUnreachable, ErrorUpstreamReset:
		return word
	}
	return "other"
}

// cell holds the counters of one key, and what the log remembers of it. There are
// as many as the sandbox likes, so that their size is held to 128 bytes by a test.
type cell struct {
	key
	next        *cell // of the same hash
	count       uint64
	first, last int64 // Unix nanoseconds; 0 before the first event
	repeats     fold  // of a decision or error
	flows       *flowCounts
}

// flowCounts are what a target's flows add to its cell.
type flowCounts struct {
	bytesOut, bytesIn uint64
	lines             fold
	logged            int // of the flows in lines' window
}

func (c *cell) add(e *Event) {
	switch e.Kind {
	case KindFlow:
		// a flow's decision has been counted when it was opened
		c.addBytes(e.BytesOut, e.BytesIn)
	default:
		c.count++
	}
	at := e.Time.UnixNano()
	c.span(at, at)
}

func (c *cell) addBytes(out, in uint64) {
	if c.flows == nil {
		c.flows = &flowCounts{}
	}
	c.flows.bytesOut += out
	c.flows.bytesIn += in
}

func (c *cell) span(first, last int64) {
	if c.first == 0 || first < c.first {
		c.first = first
	}
	if last > c.last {
		c.last = last
	}
}

// counters never drop a count: what has no room of its own is in other. An
// allowed target takes the room of the oldest denied one, so that a flood of
// denied names can't hide what the sandbox really uses. Guarded by Log.mu.
type counters struct {
	max  int
	size int
	// cells are by the hash of their key, which they have themselves.
	cells map[uint64]*cell
	seed  maphash.Seed
	// denied are those that may give way, oldest first.
	denied []*cell

	numbers map[outcome]uint32 // in sums
	sums    []sum
	lately  uint32 // the last number that was asked for
}

// sum is of one outcome over all targets; other is of those without a cell.
type sum struct {
	outcome
	total uint64
	other *cell
}

func newCounters(limit int) counters {
	return counters{max: limit, cells: map[uint64]*cell{}, seed: maphash.MakeSeed(), numbers: map[outcome]uint32{}}
}

func (c *counters) keyOf(e *Event) key {
	k := key{name: e.Name, port: e.Port, protocol: e.Protocol, outcome: c.number(outcomeOf(e))}
	if e.Name == "" {
		k.addr = e.Addr
	}
	if e.Channel == ChannelDNS {
		k.port, k.protocol = 0, policy.TCP
	}
	return k
}

// number gives an outcome's place in sums.
func (c *counters) number(o outcome) uint32 {
	if int(c.lately) < len(c.sums) && c.sums[c.lately].outcome == o {
		return c.lately
	}
	number, known := c.numbers[o]
	if !known {
		number = uint32(len(c.sums))
		c.numbers[o] = number
		c.sums = append(c.sums, sum{outcome: o})
	}
	c.lately = number
	return number
}

// hash keeps a sandbox from choosing which names share a place.
func (c *counters) hash(k *key) uint64 {
	const odd = 0x9E3779B97F4A7C15 // so that each bit of the small numbers moves many
	small := (uint64(k.outcome)<<24 | uint64(k.port)<<8 | uint64(k.protocol)) * odd
	if k.name == "" {
		return maphash.Comparable(c.seed, k.addr) ^ small
	}
	return maphash.String(c.seed, k.name) ^ small
}

// add counts e. known is false where it was counted under other.
func (c *counters) add(e *Event) (at *cell, known bool) {
	k := c.keyOf(e)
	if e.Kind != KindFlow {
		c.sums[k.outcome].total++
	}
	hash := c.hash(&k)
	for at = c.cells[hash]; at != nil && at.key != k; {
		at = at.next
	}
	if known = at != nil; !known && c.room(k) {
		at, known = &cell{key: k, next: c.cells[hash]}, true
		c.cells[hash] = at
		c.size++
		if c.mayGiveWay(k) {
			c.denied = append(c.denied, at)
		}
	}
	if !known {
		at = c.otherOf(k.outcome)
	}
	at.add(e)
	return at, known
}

func (c *counters) otherOf(outcome uint32) *cell {
	of := &c.sums[outcome]
	if of.other == nil {
		of.other = &cell{key: key{outcome: outcome}}
	}
	return of.other
}

// mayGiveWay is true of denials, and of errors.
func (c *counters) mayGiveWay(k key) bool { return c.sums[k.outcome].verdict == policy.Deny }

// room says whether k may have a cell of its own, and makes room for it.
func (c *counters) room(k key) bool {
	if c.size < c.max {
		return true
	}
	if c.mayGiveWay(k) || len(c.denied) == 0 {
		return false
	}
	oldest := c.denied[0]
	c.denied[0], c.denied = nil, c.denied[1:]
	c.otherOf(oldest.outcome).merge(oldest)
	c.remove(oldest)
	return true
}

func (c *counters) remove(gone *cell) {
	c.size--
	hash := c.hash(&gone.key)
	first := c.cells[hash]
	switch {
	case first != gone:
		before := first
		for before.next != gone {
			before = before.next
		}
		before.next = gone.next
	case gone.next != nil:
		c.cells[hash] = gone.next
	default:
		delete(c.cells, hash)
	}
}

// all walks over the cells of single targets, in no order.
func (c *counters) all(yield func(*cell) bool) {
	for _, at := range c.cells {
		for ; at != nil; at = at.next {
			if !yield(at) {
				return
			}
		}
	}
}

func (c *cell) merge(from *cell) {
	c.count += from.count
	if from.flows != nil {
		c.addBytes(from.flows.bytesOut, from.flows.bytesIn)
	}
	c.span(from.first, from.last)
}

func (c *counters) export(at *cell) Count {
	o := c.sums[at.outcome]
	count := Count{
		Name: at.name, Addr: at.addr, Port: at.port, Protocol: at.protocol,
		Verdict: o.verdict, Reason: o.reason, Error: o.failure,
		Count: at.count, First: time.Unix(0, at.first), Last: time.Unix(0, at.last),
	}
	if at.flows != nil {
		count.BytesOut, count.BytesIn = at.flows.bytesOut, at.flows.bytesIn
	}
	return count
}

// Summary gives every count, the most frequent first.
func (l *Log) Summary() []Count {
	l.mu.Lock()
	c := &l.counters
	counts := make([]Count, 0, c.size+len(c.sums))
	for at := range c.all {
		counts = append(counts, c.export(at))
	}
	for i := range c.sums {
		if other := c.sums[i].other; other != nil {
			count := c.export(other)
			count.Target = OtherTarget
			counts = append(counts, count)
		}
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
	totals := make([]Total, 0, len(l.counters.sums))
	for _, o := range l.counters.sums {
		if o.total > 0 {
			totals = append(totals, Total{Verdict: o.verdict, Reason: o.reason, Error: o.failure, Count: o.total})
		}
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
