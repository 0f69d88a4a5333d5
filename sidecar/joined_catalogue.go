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
	found, err := w.catalogue.run(ctx, req.Cases, req.Safe)
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
		found, err := w.runSafe(ctx)
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

// safeAttempts are how often the safe cases are tried where what looks like a leak
// could be a swap amid them, or a refusal that took long on a busy machine.
const safeAttempts = 3

// runSafe runs the safe cases. What leaks is tried again while there may be another
// explanation.
func (w *joinedWorker) runSafe(ctx context.Context) (probe.Report, error) {
	for attempt := 1; ; attempt++ {
		before := w.car.generation()
		found, err := w.catalogue.run(ctx, nil, true)
		if err != nil || found.Leaks == 0 || attempt == safeAttempts {
			return found, err
		}
		slow := !slices.ContainsFunc(found.Cases, func(f probe.Finding) bool { return f.Verdict == probe.Leak && f.ID != rowOfTime })
		if w.car.generation() == before && !slow {
			return found, nil
		}
	}
}

// rowOfTime is the row of denials that hang.
const rowOfTime = "B22"

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
