//go:build linux

package proxy

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// FlowLog is where the end of a flow is told.
type FlowLog interface {
	Record(e audit.Event) audit.Event
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

// Flows holds every open flow. Its methods are safe for concurrent use.
type Flows struct {
	log  FlowLog
	mu   sync.Mutex
	open map[uint64]*Flow
	next uint64
}

// Flow is one open flow. Whoever registered it calls End, once it is over.
type Flow struct {
	flows    *Flows
	id       uint64
	out, in  atomic.Uint64
	revoked  bool
	decision policy.Decision
}

// NewFlows makes an empty registry. Close ends it.
func NewFlows(log FlowLog) *Flows { return &Flows{log: log, open: map[uint64]*Flow{}} }

// Register adds a flow. Judge it once more afterwards (Confirm): one that was
// admitted while the policy was swapped is not known to the swap. cut is called
// at most once, from any goroutine, when the flow is revoked or cut before its
// relay has begun, or has none: it must have aborted the flow's sockets (Abort)
// when it returns. nil where there is nothing to abort yet.
func (fs *Flows) Register(info FlowInfo, cut func()) *Flow {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.next++
	f := &Flow{flows: fs, id: fs.next, decision: info.Decision}
	fs.open[f.id] = f
	return f
}

// List gives the open flows, oldest first.
func (fs *Flows) List() []FlowSnapshot { return nil }

// Len is how many flows are open.
func (fs *Flows) Len() int { return len(fs.open) }

// Cut aborts one flow; false when there is none of that id.
func (fs *Flows) Cut(id string) bool { return false }

// Rejudge decides every open flow again, on its recorded evidence, under c (nil
// forbids all), and aborts those that c forbids. When it returns no byte of an
// aborted flow is sent any more. It says how many it aborted.
func (fs *Flows) Rejudge(c *policy.Compiled) (revoked int) { return 0 }

// Close aborts every open flow and waits for the relays to end.
func (fs *Flows) Close() {}

// ID names the flow in the log and in the control API.
func (f *Flow) ID() string { return "" }

// Confirm judges a flow again under c, the policy in force after the flow was
// registered. A flow that c forbids is revoked: its cut is called before Confirm
// returns, and what End records says so.
func (f *Flow) Confirm(c *policy.Compiled) policy.Decision { return f.decision }

// AddBytes counts what was forwarded outside the relay (first bytes replayed, an
// HTTP body).
func (f *Flow) AddBytes(out, in uint64) { f.out.Add(out); f.in.Add(in) }

// End takes the flow off the registry and records it, with err saying how it
// ended (nil: both sides closed in order). Only the first call counts.
func (f *Flow) End(err error) {
	f.flows.mu.Lock()
	defer f.flows.mu.Unlock()
	delete(f.flows.open, f.id)
}

// Abort resets a connection at once: what it had still to send is thrown away,
// what arrives is refused. When it returns nothing more is sent. The connection
// must still be closed.
func Abort(c *net.TCPConn) error {
	return c.SetLinger(0)
}
