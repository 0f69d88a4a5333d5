//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// change is one swap as the transaction wants it.
type change struct {
	document policy.Document
	phase    string
	// ifGeneration, where not nil, must be in force.
	ifGeneration *uint64
	// lease, where not nil, takes over at until.
	lease *api.Then
	until time.Time
	// ended, where not nil, is the lease whose end this change is; it is dropped
	// when another has taken its place meanwhile.
	ended *leaseTimer
}

// Swap is PUT /v1/policy.
func (e *Engine) Swap(ctx context.Context, req api.SwapRequest) (api.SwapResult, error) {
	if req.Policy == nil {
		return api.SwapResult{}, api.Invalid([]policy.Problem{{Path: "policy", Message: "is missing: say which policy to swap to"}})
	}
	lease, until, err := e.leaseOf(req.For, req.Then)
	if err != nil {
		return api.SwapResult{}, err
	}
	return e.swap(ctx, change{
		document: *req.Policy, phase: req.Phase, ifGeneration: req.IfGeneration, lease: lease, until: until,
	})
}

// swap is the transaction: validate, prepare, commit, judge open flows again,
// answer. Until the kernel has committed any failure leaves the old policy; from
// there on nothing can fail that would leave something in between.
func (e *Engine) swap(ctx context.Context, ch change) (api.SwapResult, error) {
	began := time.Now()
	e.swapping.Lock()
	defer e.swapping.Unlock()

	e.mu.RLock()
	state, timer := e.state, e.lease
	e.mu.RUnlock()
	if ch.ended != nil && ch.ended != timer {
		return api.SwapResult{}, errLeaseReplaced
	}
	if ch.ifGeneration != nil && *ch.ifGeneration != state.Generation {
		return api.SwapResult{}, api.Stale(*ch.ifGeneration, state.Generation)
	}
	warnings, err := e.config.Capabilities.Check(ch.document)
	if err != nil {
		return api.SwapResult{}, missingCapability(err, state.Generation)
	}
	next := State{
		Document: ch.document, Generation: state.Generation + 1, Phase: ch.phase,
		Since: time.Now(), Phases: state.Phases,
	}
	if ch.lease != nil {
		next.Lease = &api.Lease{Expires: ch.until, Then: *ch.lease}
	}
	compiled := policy.Compile(ch.document, policy.Options{Floor: e.config.Floor, Generation: next.Generation})
	if err := ctx.Err(); err != nil {
		return api.SwapResult{}, fmt.Errorf("swap given up before anything changed: %w", err)
	}
	revoked, err := e.commit(context.WithoutCancel(ctx), compiled, next)
	if err != nil {
		return api.SwapResult{}, err
	}
	result := api.SwapResult{
		Generation: next.Generation, Revoked: revoked, Phase: next.Phase, Lease: next.Lease,
		Warnings: warnings, TookUS: time.Since(began).Microseconds(),
	}
	e.config.Log.Record(audit.Event{
		Kind: audit.KindSwap, Generation: next.Generation, Phase: next.Phase, Revoked: revoked,
		Duration: time.Since(began), Message: "policy " + string(ch.document.Mode),
	})
	return result, nil
}

// commit changes kernel, store and pointer, and cuts what is now forbidden.
func (e *Engine) commit(ctx context.Context, compiled *policy.Compiled, next State) (revoked int, err error) {
	persist := func() error { return nil }
	if e.config.Store != nil {
		if persist, err = e.config.Store.Prepare(next); err != nil {
			return 0, fmt.Errorf("write the state aside: %w", err)
		}
	}
	e.changes.Add(1)
	defer e.changes.Add(1)
	e.attributing.Lock()
	revoked, err = e.config.Kernel.Swap(ctx, compiled, e.attributed(compiled))
	if err != nil {
		e.attributing.Unlock()
		return 0, api.KernelRefused(err, next.Generation-1)
	}
	e.inForce.p.Store(compiled)
	e.attributing.Unlock()

	e.mu.Lock()
	e.state, e.locked = next, ""
	e.startLeaseLocked()
	e.mu.Unlock()
	e.breach.Store(nil)

	e.config.Resolver.Flush()
	revoked += e.config.Flows.Rejudge(compiled)
	if err := persist(); err != nil {
		// The new policy is enforced and stands; what is lost is that a restart would
		// remember it, so the restart must not trust the older file either.
		err = errors.Join(err, e.config.Store.Forget())
		e.fault("the state could not be kept, a restart will deny everything: " + err.Error())
	}
	return revoked, nil
}

// attributed gives what c opens on the addresses that the resolver handed out.
func (e *Engine) attributed(c *policy.Compiled) []firewall.Attributed {
	var opened []firewall.Attributed
	opens := map[string][]policy.Opening{}
	now := time.Now()
	for entry := range e.config.Names.All() {
		openings, known := opens[entry.Name]
		if !known {
			openings = c.Openings(entry.Name)
			opens[entry.Name] = openings
		}
		// A second at least: a timeout of none would never end.
		timeout := max(entry.Expires.Sub(now), time.Second)
		for _, o := range openings {
			opened = append(opened, firewall.Attributed{Addr: entry.Addr, Opening: o, Timeout: timeout})
		}
	}
	return opened
}

// fault records that something of the enforcement point does not hold as it
// should; Status shows it until the next swap succeeds.
func (e *Engine) fault(why string) {
	e.breach.Store(&why)
	e.config.Log.Record(audit.Event{Kind: audit.KindBreach, Message: why, Generation: e.generation()})
}

// Lockdown denies everything, whether or not the kernel takes the rules for it, or
// the state can be kept: the proxy and the resolver deny from here on in any case,
// and so does a worker after this one, until a swap succeeds. why is recorded; where
// all is denied for it already, nothing else is done.
func (e *Engine) Lockdown(ctx context.Context, why string) {
	ctx = context.WithoutCancel(ctx)
	began := time.Now()
	e.swapping.Lock()
	defer e.swapping.Unlock()
	e.mu.RLock()
	state, locked := e.state, e.locked
	e.mu.RUnlock()
	if locked == why {
		e.fault(why)
		return
	}
	locked = ""
	next := State{
		Document: policy.Document{Mode: policy.ModeNoNetwork}, Generation: state.Generation + 1,
		Since: began, Phases: state.Phases, Locked: why,
	}
	compiled := policy.Compile(next.Document, policy.Options{Floor: e.config.Floor, Generation: next.Generation})
	e.changes.Add(1)
	defer e.changes.Add(1)
	e.attributing.Lock()
	e.inForce.p.Store(compiled)
	e.attributing.Unlock()
	e.config.Resolver.Flush()
	revoked := e.config.Flows.Rejudge(compiled)
	// Before the kernel: a worker that dies from here on is followed by one that denies.
	if err := e.keep(next); err != nil {
		why += "; " + err.Error()
	}
	e.attributing.Lock()
	direct, err := e.config.Kernel.Swap(ctx, compiled, nil)
	e.attributing.Unlock()
	if err != nil {
		why += "; the kernel did not take the rules of no-network: " + err.Error()
	} else {
		e.config.Log.Record(audit.Event{
			Kind: audit.KindSwap, Generation: next.Generation, Revoked: revoked + direct,
			Duration: time.Since(began), Message: "policy " + string(next.Document.Mode),
		})
		locked = next.Locked
	}
	e.breach.Store(&why)
	e.mu.Lock()
	e.state, e.locked = next, locked
	e.startLeaseLocked()
	e.mu.Unlock()
	e.fault(why)
}

// Locked is why everything is denied, kernel and all; "" where a swap says what is.
func (e *Engine) Locked() string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.locked
}

// keep keeps a state at once, or sees to it that a restart denies everything.
func (e *Engine) keep(s State) error {
	if e.config.Store == nil {
		return nil
	}
	commit, err := e.config.Store.Prepare(s)
	if err == nil {
		err = commit()
	}
	if err != nil {
		err = errors.Join(err, e.config.Store.Forget())
		return fmt.Errorf("the state could not be kept, a restart will deny everything: %w", err)
	}
	return nil
}

// Phases is the answer of GET /v1/phases.
func (e *Engine) Phases() api.Phases {
	e.mu.RLock()
	defer e.mu.RUnlock()
	phases := api.Phases{Current: e.state.Phase, Phases: []api.Phase{}}
	for _, p := range e.state.Phases {
		phases.Phases = append(phases.Phases, api.Phase{Name: p.Name, Policy: p.Policy, Source: p.Source})
	}
	return phases
}

// SetPhases replaces the named policies; the policy in force stays.
func (e *Engine) SetPhases(_ context.Context, phases []api.Phase) error {
	e.swapping.Lock()
	defer e.swapping.Unlock()
	named := make([]policy.Phase, 0, len(phases))
	for _, p := range phases {
		named = append(named, policy.Phase{Name: p.Name, Policy: p.Policy, Source: p.Source})
	}
	e.mu.RLock()
	next := e.state
	e.mu.RUnlock()
	if err := thenExists(next.Lease, named); err != nil {
		return err
	}
	next.Phases = named
	if e.config.Store != nil && next.Since != (time.Time{}) {
		persist, err := e.config.Store.Prepare(next)
		if err == nil {
			err = persist()
		}
		if err != nil {
			return fmt.Errorf("keep the phases: %w", err)
		}
	}
	e.mu.Lock()
	e.state.Phases = named
	e.mu.Unlock()
	return nil
}

// thenExists refuses to take away the phase that a lease in force ends in.
func thenExists(lease *api.Lease, phases []policy.Phase) error {
	if lease == nil || lease.Then.Phase == "" {
		return nil
	}
	if slices.ContainsFunc(phases, func(p policy.Phase) bool { return p.Name == lease.Then.Phase }) {
		return nil
	}
	return api.Invalid([]policy.Problem{{
		Path:    "phases",
		Message: fmt.Sprintf("phase %q is what the lease in force ends in: keep it, or swap first", lease.Then.Phase),
	}})
}

// EnterPhase is POST /v1/phases/{name}.
func (e *Engine) EnterPhase(ctx context.Context, name string, req api.EnterRequest) (api.SwapResult, error) {
	document, err := e.phase(name)
	if err != nil {
		return api.SwapResult{}, err
	}
	lease, until, err := e.leaseOf(req.For, req.Then)
	if err != nil {
		return api.SwapResult{}, err
	}
	return e.swap(ctx, change{
		document: document, phase: name, ifGeneration: req.IfGeneration, lease: lease, until: until,
	})
}

func (e *Engine) phase(name string) (policy.Document, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	known := make([]string, 0, len(e.state.Phases))
	for _, p := range e.state.Phases {
		if p.Name == name {
			return p.Policy, nil
		}
		known = append(known, p.Name)
	}
	return policy.Document{}, api.NoSuchPhase(name, known)
}
