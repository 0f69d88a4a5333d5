//go:build linux

package sidecar

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/probe"
)

// catalogue runs the bypass probe from beside the sandbox, one run at a time.
type catalogue struct {
	options probe.Options
	running chan struct{}

	mu   sync.Mutex
	runs uint64 // of the schedule
	at   time.Time
	last probe.Report
	leak string // what the last one found; "" is nothing
}

func (w *joinedWorker) newCatalogue() *catalogue {
	var listeners []netip.AddrPort
	for i, ports := range []struct{ tcp, dns, explicit uint16 }{
		{w.V4.TCP, w.V4.DNS, w.V4.Explicit}, {w.V6.TCP, w.V6.DNS, w.V6.Explicit},
	} {
		for _, port := range []uint16{ports.tcp, ports.dns, ports.explicit} {
			if port != 0 {
				listeners = append(listeners, netip.AddrPortFrom(loopbacks[i], port))
			}
		}
	}
	return &catalogue{
		running: make(chan struct{}, 1),
		options: probe.Options{
			SocketMark: probeMark,
			Beside:     &probe.Beside{Allowed: w.allows, Listeners: listeners, Claim: w.claims.claim},
		},
	}
}

// allows says whether the policy in force allows what a probe is about to try.
func (w *joinedWorker) allows(r policy.Request) bool {
	c := w.car.InForce().Load()
	if c == nil {
		return false
	}
	if r.Addr.IsValid() {
		r.Attributed = w.car.Names().Names(r.Addr)
	}
	return c.Decide(r).Verdict == policy.Allow
}

// run tries the cases.
func (c *catalogue) run(ctx context.Context, ids []string, safe bool) (probe.Report, error) {
	select {
	case c.running <- struct{}{}:
		defer func() { <-c.running }()
	case <-ctx.Done():
		return probe.Report{}, ctx.Err()
	}
	o := c.options
	o.IDs, o.Safe, o.Marker = ids, safe, "exeat-"+strings.ToLower(rand.Text()[:10])
	return probe.Run(ctx, o)
}

// Probe implements control.Prober.
func (w *joinedWorker) Probe(ctx context.Context, req api.ProbeRequest) (api.ProbeReport, error) {
	var unknown []policy.Problem
	for i, id := range req.Cases {
		if _, known := probe.RowOf(id); !known {
			unknown = append(unknown, policy.Problem{
				Path: fmt.Sprintf("cases[%d]", i), Message: fmt.Sprintf("no case %q: the catalogue goes from B01 to B79", id),
			})
		}
	}
	if len(unknown) > 0 {
		return api.ProbeReport{}, api.Invalid(unknown)
	}
	found, err := w.try(ctx, req.Cases, req.Safe)
	return reported(found), err
}

// LastProbe implements control.ProbeHistory.
func (w *joinedWorker) LastProbe() (runs uint64, at time.Time, last api.ProbeReport) {
	w.catalogue.mu.Lock()
	defer w.catalogue.mu.Unlock()
	return w.catalogue.runs, w.catalogue.at, reported(w.catalogue.last)
}

// reported is a report as the control API gives it.
func reported(r probe.Report) api.ProbeReport {
	out := api.ProbeReport{Cases: []api.ProbeCase{}, Held: r.Held, Leaks: r.Leaks, NotProven: r.NotProven}
	for _, f := range r.Cases {
		out.Cases = append(out.Cases, api.ProbeCase{
			ID: f.ID, Attack: f.Attack, Expected: f.Expected, Seen: f.Seen, Verdict: api.ProbeVerdict(f.Verdict), Why: f.Why,
		})
	}
	return out
}

// soonAgain is when the schedule's first run is, and the one after a leak, where
// the schedule itself is not sooner.
const soonAgain = 30 * time.Second

// keepSchedule runs the safe cases for ever.
func (w *joinedWorker) keepSchedule(ctx context.Context) error {
	every := w.Config.Schedule
	next := time.NewTimer(min(every, soonAgain))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		found, err := w.try(ctx, nil, true)
		if ctx.Err() != nil {
			return nil // cut short: that it found nothing says nothing
		}
		w.conclude(ctx, found, err)
		if err != nil || found.Leaks > 0 {
			next.Reset(min(every, soonAgain))
		} else {
			next.Reset(every)
		}
	}
}

// rowOfTime is the row of denials that hang.
const rowOfTime = "B22"

// How often a row is tried where what looks like a leak could be a refusal that took
// long on a busy machine, or a swap amid it.
const (
	slowAttempts = 3
	amidAttempts = 20
)

// try runs cases. What looks like a leak is tried again, row by row, while there may
// be another explanation.
func (w *joinedWorker) try(ctx context.Context, ids []string, safe bool) (probe.Report, error) {
	found, settled, err := w.tryOnce(ctx, ids, safe)
	if err != nil {
		return found, err
	}
	var doubtful []string
	for _, f := range found.Cases {
		if f.Verdict == probe.Leak && (!settled || f.ID == rowOfTime) {
			doubtful = append(doubtful, f.ID)
		}
	}
	for _, id := range slices.Compact(doubtful) {
		row, err := w.tryRow(ctx, id, safe)
		if err != nil {
			return found, err
		}
		found = found.Replace(id, row)
	}
	return found, nil
}

// tryRow tries a row that seemed to leak until it does not, or nothing else explains
// it. It proves nothing where there is no try without a swap in its course.
func (w *joinedWorker) tryRow(ctx context.Context, id string, safe bool) (probe.Report, error) {
	for slow, amid := 1, 1; ; {
		row, settled, err := w.tryOnce(ctx, []string{id}, safe)
		switch {
		case err != nil || row.Leaks == 0:
			return row, err
		case settled:
			if slow++; id != rowOfTime || slow >= slowAttempts {
				return row, nil
			}
		default:
			if amid++; amid >= amidAttempts {
				return row.Doubt("the policy was swapped meanwhile"), nil
			}
			wait(ctx, settleEvery) // an end of ctx ends the next try
		}
	}
}

// tryOnce runs cases. settled says that no swap was in their course, in which the
// kernel has another policy than the one that they are held against.
func (w *joinedWorker) tryOnce(ctx context.Context, ids []string, safe bool) (found probe.Report, settled bool, err error) {
	before, settled := w.car.Settled()
	found, err = w.catalogue.run(ctx, ids, safe)
	after, _ := w.car.Settled()
	return found, settled && before == after, err
}

// conclude says what a run of the schedule has found, and acts on a leak.
func (w *joinedWorker) conclude(ctx context.Context, found probe.Report, err error) {
	why := leakOf(found)
	if err != nil {
		why = "the bypass probe could not be run: " + oneLine(err)
	}
	c := w.catalogue
	c.mu.Lock()
	said := c.leak
	c.runs++
	c.at, c.last, c.leak = time.Now(), found, why
	c.mu.Unlock()
	w.car.Log().Record(audit.Event{Kind: audit.KindProbe, Message: fmt.Sprintf(
		"bypass probe: %d held, %d leaks, %d not proven from beside the sandbox", found.Held, found.Leaks, found.NotProven)})
	switch {
	case why == "" || why == said && (w.Config.OnBreach == BreachReport || err != nil):
	case w.Config.OnBreach == BreachDeny && err == nil:
		w.car.Lockdown(ctx, why)
	default:
		w.car.Log().Record(audit.Event{Kind: audit.KindBreach, Message: why})
	}
}

// leaked is what the last run of the schedule found; "" is nothing.
func (c *catalogue) leaked() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leak
}

// leakOf names the leaks of a report; "" where there are none.
func leakOf(found probe.Report) string {
	var leaks []string
	for _, f := range found.Cases {
		if f.Verdict == probe.Leak && len(leaks) < 3 {
			leaks = append(leaks, fmt.Sprintf("%s, %s: %s", f.ID, f.Attack, f.Seen))
		}
	}
	if len(leaks) == 0 {
		return ""
	}
	return fmt.Sprintf("the bypass probe found %d leaks: %s", found.Leaks, strings.Join(leaks, "; "))
}
