package audit

import (
	"io"
	"net/netip"
	"time"

	"github.com/exeat/exeat/policy"
)

// Config is what a Log is made of. The zero value works: it keeps the ring and
// the counters and writes nothing.
type Config struct {
	// Writer gets the JSON lines; nil writes none. It is written to by one
	// goroutine, so a slow writer delays no decision.
	Writer io.Writer
	// RingSize is how many events are kept for readers (default 8,192).
	RingSize int
	// MaxTargets bounds the counters (default 50,000); what comes after is counted
	// under the target "other".
	MaxTargets int
	// FoldWindow is how long repeats are held together (default 10 s).
	FoldWindow time.Duration
	// Rate and Burst bound the lines a second that distinct decisions of one
	// verdict may add (default 500 and 4,096); what exceeds them is folded by
	// reason.
	Rate, Burst int
	// Phase gives the phase that an event without one belongs to; nil is none.
	Phase func() string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Log records events. Its methods are safe for concurrent use.
type Log struct{}

// New makes a Log and starts its writer; Close ends it.
func New(c Config) *Log { return &Log{} }

// NewDecisionID gives the next decision id: short, ordered, unique to this start.
func (l *Log) NewDecisionID() string { return "" }

// Record fills what is unset of ID, Time, Phase and (for a decision) DecisionID,
// counts e, and logs it or folds it into a repeat. It never blocks on a reader
// or on the writer.
func (l *Log) Record(e Event) Event { return e }

// Read copies events after the given ID into the buffer, oldest first, and says
// how many it copied and how many after it were no longer there.
func (l *Log) Read(after uint64, into []Event) (n int, lost uint64) { return 0, 0 }

// Last is the ID of the newest event, 0 before the first.
func (l *Log) Last() uint64 { return 0 }

// Subscribe follows the log from the event after the given ID.
func (l *Log) Subscribe(after uint64, buffer int) *Subscription { return &Subscription{} }

// Subscription is one reader of the log.
type Subscription struct{}

// C delivers the events; it is closed by Close and when the Log is closed.
func (s *Subscription) C() <-chan Event { return nil }

// Lost says how many events this reader was too slow for.
func (s *Subscription) Lost() uint64 { return 0 }

// Close ends the subscription and waits for its goroutine.
func (s *Subscription) Close() {}

// Count is how often one target met one verdict for one reason.
type Count struct {
	// Target is as Event.Target writes it, "other" for what exceeded MaxTargets.
	Target string `json:"target"`
	Name   string `json:"name,omitempty"`
	// Addr is set where nothing was named.
	Addr     netip.Addr      `json:"addr,omitzero"`
	Port     uint16          `json:"port,omitempty"`
	Protocol policy.Protocol `json:"-"`
	Verdict  policy.Verdict  `json:"-"`
	Reason   policy.Reason   `json:"reason,omitempty"`
	// Error is set on the counts of failures, which have no verdict.
	Error    string    `json:"error,omitempty"`
	Count    uint64    `json:"count"`
	BytesOut uint64    `json:"bytes_out,omitempty"`
	BytesIn  uint64    `json:"bytes_in,omitempty"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
}

// Summary gives every count, the most frequent first.
func (l *Log) Summary() []Count { return nil }

// Close writes what is folded and queued, ends every subscription, and waits for
// the writer (at most 5 s: a writer that is stuck must not hold up an exit).
func (l *Log) Close() error { return nil }
