//go:build linux

package proxy

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// Flow is one open flow. Whoever registered it calls End, once it is over.
type Flow struct {
	flows  *Flows
	seq    uint64
	opened time.Time
	info   FlowInfo // never changed
	out    atomic.Uint64
	in     atomic.Uint64

	// aborting makes everybody who aborts the flow wait until it is aborted.
	aborting sync.Once

	// mu guards what follows. It is held while the tunnel is given to its worker,
	// so that a flow is either aborted before it, or has a tunnel to abort.
	mu sync.Mutex
	// decision is the last verdict: the one that keeps the flow, or revoked it.
	decision policy.Decision
	cut      func()
	tunnel   *tunnel
	aborted  error // ErrRevoked or ErrCut
	ended    bool
}

// ID names the flow in the log and in the control API.
func (f *Flow) ID() string { return f.flows.prefix + strconv.FormatUint(f.seq, 10) }

// AddBytes counts what was forwarded outside the relay (first bytes replayed, an
// HTTP body).
func (f *Flow) AddBytes(out, in uint64) {
	f.out.Add(out)
	f.in.Add(in)
}

// Confirm judges a flow again under c, the policy in force after the flow was
// registered (nil forbids all). A flow that c forbids is revoked: it is aborted
// when Confirm returns, and what End records says so.
func (f *Flow) Confirm(c *policy.Compiled) policy.Decision {
	decision, revoked := f.judge(c)
	if revoked {
		f.abort(ErrRevoked)
		f.settle()
		f.flows.nudge()
	}
	return decision
}

// Rejudge decides every open flow again, on its recorded evidence, under c (nil
// forbids all), and aborts those that c forbids; it says how many. When it returns
// nothing of an aborted flow is relayed, neither side is given another byte, and its
// upstream is reset, so that it sends none. Its client is reset too, or, where it was
// silent and nothing is queued for it, is about to be. Flows that are moving come
// first. End records each.
func (fs *Flows) Rejudge(c *policy.Compiled) (revoked int) {
	all := fs.all()
	var total atomic.Int64
	shareOut(all, func(part []*Flow) {
		n := 0
		for i, f := range part {
			if _, revoke := f.judge(c); !revoke {
				part[i] = nil // nothing to settle
			} else if f.abort(ErrRevoked) {
				n++
			}
		}
		total.Add(int64(n))
	})
	shareOut(all, func(part []*Flow) {
		for _, f := range part {
			if f != nil {
				f.settle()
			}
		}
	})
	fs.nudge()
	return int(total.Load())
}

// shareOut has every processor do its share of the flows and waits for all:
// resetting a socket is work for the kernel's network stack. They take a few flows
// at a time, since whom a reset wakes takes a processor away from one or the other.
func shareOut(all []*Flow, do func(part []*Flow)) {
	const some = 64
	var next atomic.Int64
	var done sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), (len(all)+some-1)/some) {
		done.Go(func() {
			for {
				end := int(next.Add(some))
				start := end - some
				if start >= len(all) {
					return
				}
				do(all[start:min(end, len(all))])
			}
		})
	}
	done.Wait()
}

// nudge has the workers end what was aborted.
func (fs *Flows) nudge() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, w := range fs.workers {
		w.nudge()
	}
}

// judge decides f under c and keeps the decision. revoke says that the flow must
// be aborted, or that somebody is just aborting it.
func (f *Flow) judge(c *policy.Compiled) (d policy.Decision, revoke bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return f.decision, false
	case f.aborted != nil:
		return f.decision, true
	case c != nil && c.Generation() < f.decision.Generation:
		return f.decision, false // a newer policy has judged it already
	}
	f.decision = f.info.decide(c)
	return f.decision, f.decision.Verdict != policy.Allow
}

// decide judges the evidence of a flow: what it asked for, then the address that
// its name led to.
func (i *FlowInfo) decide(c *policy.Compiled) policy.Decision {
	if c == nil {
		return policy.Decision{Reason: policy.ReasonUnprotected}
	}
	d := c.Decide(i.Request)
	if d.Verdict == policy.Allow && i.Addr.IsValid() && unroutable(i.Addr) && !i.Pinned && !opens(c, i.Addr, i.Port) {
		// As when it was let in: a wide target does not mean loopback.
		return policy.Decision{Reason: policy.ReasonSpecialAddress, Generation: c.Generation()}
	}
	if d.Verdict != policy.Allow || !i.Resolved {
		return d
	}
	if a := c.DecideAddress(i.Name, i.Addr, i.Port, i.Protocol, i.Pinned); a.Verdict != policy.Allow {
		return a
	}
	return d
}

// settle does what abort left for later.
func (f *Flow) settle() {
	f.mu.Lock()
	tunnel := f.tunnel
	f.mu.Unlock()
	if tunnel != nil {
		tunnel.settle()
	}
}

// abort stops the flow and says whether it was open until then. When it returns
// nothing is relayed any more, whoever does it; settle is to follow, and the
// workers must be nudged.
func (f *Flow) abort(why error) (first bool) {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return false
	}
	if f.aborted == nil {
		f.aborted, first = why, true
	}
	tunnel, cut := f.tunnel, f.cut
	f.mu.Unlock()
	f.aborting.Do(func() {
		if tunnel != nil {
			tunnel.abort(why)
		} else if cut != nil {
			cut()
		}
	})
	return first
}

// relayBy gives the flow's tunnel to a worker; an error when the flow was aborted
// before.
func (f *Flow) relayBy(t *tunnel) error {
	w, err := f.flows.worker()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.aborted != nil {
		return f.aborted
	}
	// Whoever aborts the flow finds its connections, or its tunnel, never neither.
	f.tunnel, f.cut = t, nil
	if err := errors.Join(t.ends[clientEnd].detach(), t.ends[upstreamEnd].detach()); err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	return w.add(t)
}

// maxWorkers is how many relay workers there are at most: each moves several
// gigabytes a second, and they share the pipes.
const maxWorkers = 8

// worker gives the worker with the fewest tunnels; the first call starts them,
// one a processor.
func (fs *Flows) worker() (*worker, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.closed {
		return nil, ErrCut
	}
	for n := min(runtime.GOMAXPROCS(0), maxWorkers); len(fs.workers) < n; {
		w, err := newWorker(n)
		if err != nil {
			return nil, fmt.Errorf("start the relay: %w", err)
		}
		fs.workers = append(fs.workers, w)
		fs.relays.Go(w.run)
	}
	least, load := fs.workers[0], fs.workers[0].load()
	for _, w := range fs.workers[1:] {
		if l := w.load(); l < load {
			least, load = w, l
		}
	}
	return least, nil
}

// snapshot copies the flow; false when it is over.
func (f *Flow) snapshot() (FlowSnapshot, bool) {
	f.mu.Lock()
	decision, open := f.decision, !f.ended && f.aborted == nil
	f.mu.Unlock()
	i := &f.info
	return FlowSnapshot{
		ID: f.ID(), Opened: f.opened, Client: i.Client,
		Name: i.Name, Addr: i.Addr, Port: i.Port, Protocol: i.Protocol, Channel: i.Channel,
		Rule: decision.Rule, Reason: decision.Reason, Generation: decision.Generation, DecisionID: i.DecisionID,
		BytesOut: f.out.Load(), BytesIn: f.in.Load(),
	}, open
}

// End takes the flow off the registry and records it, with err saying how it
// ended (nil: both sides closed in order). Only the first call counts.
func (f *Flow) End(err error) {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return
	}
	f.ended = true
	decision, aborted := f.decision, f.aborted
	f.cut, f.tunnel = nil, nil
	f.mu.Unlock()

	shard := f.flows.shard(f.seq)
	shard.mu.Lock()
	delete(shard.open, f.seq)
	shard.mu.Unlock()
	f.flows.log.Record(f.event(decision, aborted, err))
}

// event is what is recorded of a flow that is over.
func (f *Flow) event(d policy.Decision, aborted, err error) audit.Event {
	i := &f.info
	e := audit.Event{
		Kind: audit.KindFlow, DecisionID: i.DecisionID, FlowID: f.ID(),
		Verdict: d.Verdict, Reason: d.Reason, Rule: d.Rule, Generation: d.Generation,
		Channel: i.Channel, Name: i.Name, Addr: i.Addr, Port: i.Port, Protocol: i.Protocol,
		BytesOut: f.out.Load(), BytesIn: f.in.Load(), Duration: time.Since(f.opened),
	}
	switch {
	case errors.Is(aborted, ErrRevoked):
		e.Verdict, e.Reason = policy.Deny, policy.ReasonRevoked
		e.Message = "the policy in force forbids it: " + string(d.Reason)
	case aborted != nil:
		e.Message = aborted.Error()
	case errors.Is(err, ErrUpstreamReset):
		e.Error, e.Message = audit.ErrorUpstreamReset, err.Error()
	case err != nil:
		e.Message = err.Error()
	}
	return e
}
