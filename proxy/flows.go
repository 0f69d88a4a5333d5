//go:build linux

package proxy

import (
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// flowShards spreads the registry's locks; flows are dealt out in turn.
const flowShards = 16

// Flows holds every open flow, and moves the bytes of those that are relayed. Its
// methods are safe for concurrent use.
type Flows struct {
	log    Recorder
	prefix string
	next   atomic.Uint64
	shards [flowShards]flowShard

	relays  sync.WaitGroup
	mu      sync.Mutex // guards workers and closed
	workers []*worker
	closed  bool
}

type flowShard struct {
	mu   sync.Mutex
	open map[uint64]*Flow
}

// NewFlows makes an empty registry that tells log of every flow's end. Close ends it.
func NewFlows(log Recorder) *Flows {
	fs := &Flows{log: log, prefix: "f" + strconv.FormatInt(time.Now().Unix(), 36) + "-"}
	for i := range fs.shards {
		fs.shards[i].open = map[uint64]*Flow{}
	}
	return fs
}

// Register adds a flow. Judge it once more afterwards (Confirm): one that was
// admitted while the policy was swapped is not known to the swap. cut is called
// at most once, from any goroutine, when the flow is revoked or cut before its
// relay has begun, or has none: it must have aborted the flow's sockets (Abort)
// when it returns, and must not call this flow's Confirm. nil where there is
// nothing to abort yet.
func (fs *Flows) Register(info FlowInfo, cut func()) *Flow {
	f := &Flow{
		flows: fs, seq: fs.next.Add(1), opened: time.Now(),
		info: info, decision: info.Decision, cut: cut,
	}
	shard := fs.shard(f.seq)
	shard.mu.Lock()
	shard.open[f.seq] = f
	shard.mu.Unlock()
	if fs.isClosed() {
		f.abort(ErrCut)
	}
	return f
}

func (fs *Flows) shard(seq uint64) *flowShard { return &fs.shards[seq%flowShards] }

func (fs *Flows) isClosed() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.closed
}

// all copies the open flows, in no order.
func (fs *Flows) all() []*Flow {
	var all []*Flow
	for i := range fs.shards {
		shard := &fs.shards[i]
		shard.mu.Lock()
		all = slices.Grow(all, len(shard.open))
		for _, f := range shard.open {
			all = append(all, f)
		}
		shard.mu.Unlock()
	}
	return all
}

// List gives the open flows, oldest first.
func (fs *Flows) List() []FlowSnapshot {
	all := fs.all()
	slices.SortFunc(all, func(a, b *Flow) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	list := make([]FlowSnapshot, 0, len(all))
	for _, f := range all {
		if s, open := f.snapshot(); open {
			list = append(list, s)
		}
	}
	return list
}

// Len is how many flows are registered.
func (fs *Flows) Len() int {
	n := 0
	for i := range fs.shards {
		shard := &fs.shards[i]
		shard.mu.Lock()
		n += len(shard.open)
		shard.mu.Unlock()
	}
	return n
}

// Cut aborts one flow; false when none of that id is open.
func (fs *Flows) Cut(id string) bool {
	if len(id) <= len(fs.prefix) || id[:len(fs.prefix)] != fs.prefix {
		return false
	}
	seq, err := strconv.ParseUint(id[len(fs.prefix):], 10, 64)
	if err != nil {
		return false
	}
	shard := fs.shard(seq)
	shard.mu.Lock()
	f := shard.open[seq]
	shard.mu.Unlock()
	if f == nil || !f.abort(ErrCut) {
		return false
	}
	f.settle()
	fs.nudge()
	return true
}

// Close aborts every open flow and waits for the relays to end. What registers
// or starts afterwards is aborted at once.
func (fs *Flows) Close() {
	fs.mu.Lock()
	fs.closed = true
	workers := fs.workers
	fs.workers = nil
	fs.mu.Unlock()
	for _, f := range fs.all() {
		f.abort(ErrCut)
	}
	for _, w := range workers {
		w.close()
	}
	fs.relays.Wait()
}

// FlowInfo is what is known of a flow when it is admitted: who talks to whom,
// what was decided, and the evidence to decide it again.
type FlowInfo struct {
	Client netip.AddrPort
	// Name is what the flow asked for; empty when it named nothing.
	Name string
	// Addr is the address dialled; the zero Addr when an upstream proxy resolves
	// the name itself.
	Addr     netip.Addr
	Port     uint16
	Protocol policy.Protocol
	Channel  audit.Channel
	// Request is what was judged. A later policy judges it again. Its Attributed
	// may be shared, and must not be changed.
	Request policy.Request
	// Resolved says that Name was resolved here to Addr, so that Addr is judged
	// too (DecideAddress); Pinned is what that judgement is told.
	Resolved bool
	Pinned   bool
	// Decision admitted the flow; DecisionID joins it to the log.
	Decision   policy.Decision
	DecisionID string
}

// FlowSnapshot is an open flow as it stood for a moment.
type FlowSnapshot struct {
	ID         string
	Opened     time.Time
	Client     netip.AddrPort
	Name       string
	Addr       netip.Addr
	Port       uint16
	Protocol   policy.Protocol
	Channel    audit.Channel
	Rule       string
	Reason     policy.Reason
	Generation uint64
	DecisionID string
	// BytesOut left the sandbox, BytesIn came in.
	BytesOut, BytesIn uint64
}
