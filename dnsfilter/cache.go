package dnsfilter

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/exeat/exeat/policy"
)

// key is what answers are cached under: a lower-case name and a query type.
type key struct {
	name  string
	qtype uint16
}

// entry is one answer as upstream gave it, stripped to the records that belong
// to the question but not yet judged: judging is the view's, policy by policy. There
// are thousands, so that what can be worked out again is not kept.
type entry struct {
	name           string
	body           string // and answers and nsRRs: see sections
	view           atomic.Pointer[view]
	stored         time.Duration // since the server began
	qtype          uint16
	rcode          uint16
	ttl            uint16
	answers, nsRRs uint16
	// pinned marks an answer of the operator's, which may be loopback.
	pinned bool
	at     uint32 // among the entries of its cache
}

func (e *entry) key() key { return key{e.name, e.qtype} }

func (e *entry) sections() sections { return sections{e.body, e.answers, e.nsRRs} }

func (e *entry) expires() time.Duration { return e.stored + time.Duration(e.ttl)*time.Second }

// view is an entry judged under one policy, ready for the wire.
type view struct {
	*verdict
	// odd is nil where the entry goes out as it is.
	odd *odd
	// attributed is when its addresses were last written to the attribution table
	// and the kernel, in nanoseconds since the server began, or one of the words
	// below; mu makes the writing single.
	attributed atomic.Int64
	mu         sync.Mutex
}

// verdict is one for all views to which it applies.
type verdict struct {
	policy   *policy.Compiled
	decision policy.Decision
}

// odd is what few views have.
type odd struct {
	// dropped is the first address that was kept back, note says how many were.
	dropped netip.Addr
	note    string
	// changed is what goes out in place of the entry's, or nil.
	changed *sections
	// hints are the addresses that are handed out beside those of records.
	hints []netip.Addr
}

const (
	// neverAttributed and nothingToAttribute are beyond every clock.
	neverAttributed    = -1 << 62
	nothingToAttribute = 1 << 62
	// attributionRefresh is how often a cached answer's attribution is written anew: an
	// attribution outlives the cached answer by its grace, but may be evicted.
	attributionRefresh = 30 * time.Second
)

// fresh says whether the answer may go out without writing its attribution again.
func (v *view) fresh(now time.Duration) bool {
	return int64(now)-v.attributed.Load() < int64(attributionRefresh)
}

// shown is what of e goes out.
func (v *view) shown(e *entry) sections {
	if v.odd != nil && v.odd.changed != nil {
		return *v.odd.changed
	}
	return e.sections()
}

// addrs are what the answer hands out: records and hints.
func (v *view) addrs(e *entry) []netip.Addr {
	addrs := v.shown(e).addresses()
	if v.odd != nil {
		addrs = append(addrs, v.odd.hints...)
	}
	return addrs
}

// entryOverhead is what an entry costs beside its bytes, measured.
const entryOverhead = 256

func (e *entry) cost() int { return entryOverhead + len(e.name) + 2*len(e.body) }

// maxEntryBody is the largest answer that is kept.
const maxEntryBody = 8 << 10

// cache holds answers, bounded in number and bytes. Where it is full, the entry
// that ends first among a few random ones goes.
type cache struct {
	maxEntries, maxBytes int
	began                time.Time // what times of entries are since

	mu      sync.RWMutex
	entries map[key]*entry
	list    []listed // the same, in no order
	bytes   int
}

// listed has beside an entry what a victim is chosen by, so that those that stay are
// not read for it.
type listed struct {
	*entry
	expires time.Duration
}

func newCache(entries, bytes int, began time.Time) *cache {
	return &cache{maxEntries: entries, maxBytes: bytes, began: began, entries: make(map[key]*entry)}
}

// get finds a live entry without allocating.
func (c *cache) get(name []byte, qtype uint16, now time.Time) *entry {
	c.mu.RLock()
	e := c.entries[key{string(name), qtype}]
	c.mu.RUnlock()
	if e == nil || now.Sub(c.began) >= e.expires() {
		return nil
	}
	return e
}

func (c *cache) put(e *entry) {
	if len(e.body) > maxEntryBody || e.ttl == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(c.entries[e.key()])
	for len(c.entries) > 0 && (len(c.entries) >= c.maxEntries || c.bytes+e.cost() > c.maxBytes) {
		c.removeLocked(c.victimLocked())
	}
	c.entries[e.key()] = e
	e.at = uint32(len(c.list))
	c.list = append(c.list, listed{e, e.expires()})
	c.bytes += e.cost()
}

func (c *cache) removeLocked(e *entry) {
	if e == nil {
		return
	}
	delete(c.entries, e.key())
	last := len(c.list) - 1
	c.list[e.at] = c.list[last]
	c.list[e.at].at = e.at
	c.list[last] = listed{}
	c.list = c.list[:last]
	c.bytes -= e.cost()
}

// victimLocked is the entry that ends first among a few random ones.
func (c *cache) victimLocked() *entry {
	const samples = 8
	var victim listed
	for range samples {
		e := c.list[rand.IntN(len(c.list))]
		if victim.entry == nil || e.expires < victim.expires {
			victim = e
		}
	}
	return victim.entry
}

// epoch is what lives between two swaps: the cache, the questions in flight, and
// the right to send. A request takes the epoch before it loads the policy; since a
// swap stores the policy before it flushes, a policy older than the epoch's end
// can send nothing after it.
type epoch struct {
	ctx     context.Context
	cancel  context.CancelFunc
	cache   *cache
	failed  failures
	denials denials
	flights singleflight.Group

	send  sync.RWMutex // held for reading over each packet sent upstream
	ended bool         // under send
}

// beginSend gives leave to send one packet; endSend must follow where it is true.
func (e *epoch) beginSend() bool {
	e.send.RLock()
	if e.ended {
		e.send.RUnlock()
		return false
	}
	return true
}

func (e *epoch) endSend() { e.send.RUnlock() }

// end takes the leave back and waits for packets that are being written.
func (e *epoch) end() {
	e.cancel()
	e.send.Lock()
	e.ended = true
	e.send.Unlock()
}

func (s *Server) newEpoch() *epoch {
	e := &epoch{
		cache:  newCache(s.cfg.CacheEntries, s.cfg.CacheBytes, s.began),
		failed: failures{of: map[key]failure{}},
	}
	e.ctx, e.cancel = context.WithCancel(s.ctx)
	return e
}

// Flush forgets every cached answer and ends every question in flight. Call it
// after the new policy is stored: when it has returned, nothing that an older
// policy allowed will be sent upstream, and questions that were waiting are
// judged anew.
func (s *Server) Flush() {
	s.epoch.Swap(s.newEpoch()).end()
	s.verdict.Store(nil) // lest it keep a policy that is over
}
