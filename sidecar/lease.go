//go:build linux

package sidecar

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

// errLeaseReplaced says that a lease's end came after another swap had ended it.
var errLeaseReplaced = errors.New("the lease was replaced before it ended")

// leaseTimer ends one lease. It is compared by identity.
type leaseTimer struct {
	timer *time.Timer
	done  func()
}

// stop keeps the lease from ending, where it has not begun to.
func (t *leaseTimer) stop() {
	if t.timer.Stop() {
		t.done()
	}
}

// leaseOf reads the `for` and `then` of a request.
func (e *Engine) leaseOf(d api.Duration, then *api.Then) (*api.Then, time.Time, error) {
	if d < 0 {
		return nil, time.Time{}, api.Invalid([]policy.Problem{{Path: "for", Message: d.String() + " is in the past: want a positive duration, such as 30s"}})
	}
	if d == 0 {
		if then != nil {
			return nil, time.Time{}, api.Invalid([]policy.Problem{{Path: "then", Message: "stands only beside for: say how long the lease lasts"}})
		}
		return nil, time.Time{}, nil
	}
	if then == nil {
		then = &api.Then{}
	}
	if then.Phase != "" {
		if _, err := e.phase(then.Phase); err != nil {
			return nil, time.Time{}, err
		}
	}
	if then.Policy != nil {
		if _, err := e.config.Capabilities.Check(*then.Policy); err != nil {
			return nil, time.Time{}, missingCapability(err, e.generation())
		}
	}
	return then, time.Now().Add(time.Duration(d)), nil
}

// startLeaseLocked replaces the running timer by one for the lease in force. mu
// is held.
func (e *Engine) startLeaseLocked() {
	if e.lease != nil {
		e.lease.stop()
		e.lease = nil
	}
	lease := e.state.Lease
	if lease == nil || e.closed.Err() != nil {
		return
	}
	e.leases.Add(1)
	timer := &leaseTimer{done: e.leases.Done}
	// The timer's own goroutine must find e.lease set: mu is held until it is.
	timer.timer = time.AfterFunc(time.Until(lease.Expires), func() {
		defer e.leases.Done()
		e.endLease(timer)
	})
	e.lease = timer
}

// endLease swaps to what follows the lease; where that is refused, all is denied.
func (e *Engine) endLease(timer *leaseTimer) {
	e.mu.RLock()
	lease, current := e.state.Lease, e.lease
	e.mu.RUnlock()
	if current != timer || lease == nil || e.closed.Err() != nil {
		return
	}
	next := e.following(*lease)
	next.ended = timer
	e.config.Log.Record(audit.Event{Kind: audit.KindLease, Message: "lease ended", Generation: e.generation()})
	_, err := e.swap(e.closed, next)
	if err != nil && !errors.Is(err, errLeaseReplaced) && e.closed.Err() == nil {
		e.Lockdown(e.closed, "the lease ended and what follows it was refused: "+err.Error())
	}
}

// following is the swap to what a lease ends in; no-network where it names none,
// or a phase that is gone.
func (e *Engine) following(lease api.Lease) change {
	next := change{document: policy.Document{Mode: policy.ModeNoNetwork}}
	switch {
	case lease.Then.Policy != nil:
		next.document = *lease.Then.Policy
	case lease.Then.Phase != "":
		document, err := e.phase(lease.Then.Phase)
		if err != nil {
			e.fault("the lease ended and its phase is gone, so nothing is allowed: " + err.Error())
			break
		}
		next.document, next.phase = document, lease.Then.Phase
	}
	return next
}

// RenewLease is POST /v1/lease.
func (e *Engine) RenewLease(_ context.Context, d time.Duration) (api.Lease, error) {
	if d <= 0 {
		return api.Lease{}, api.Invalid([]policy.Problem{{Path: "for", Message: "want a positive duration, such as 30s"}})
	}
	e.swapping.Lock()
	defer e.swapping.Unlock()
	e.mu.RLock()
	next := e.state
	e.mu.RUnlock()
	if next.Lease == nil {
		return api.Lease{}, api.NoLease()
	}
	lease := api.Lease{Expires: time.Now().Add(d), Then: next.Lease.Then}
	next.Lease = &lease
	if e.config.Store != nil {
		persist, err := e.config.Store.Prepare(next)
		if err == nil {
			err = persist()
		}
		if err != nil {
			return api.Lease{}, &api.Error{
				Status: http.StatusInternalServerError, Code: api.CodeInternal, CurrentGeneration: next.Generation,
				Message: "the lease was not renewed, its state could not be kept: " + err.Error(),
			}
		}
	}
	e.mu.Lock()
	e.state.Lease = &lease
	e.startLeaseLocked()
	e.mu.Unlock()
	return lease, nil
}

// missingCapability is the 422 for what Capabilities.Check refused.
func missingCapability(err error, generation uint64) error {
	var problems policy.Errors
	if !errors.As(err, &problems) {
		problems = policy.Errors{{Message: err.Error()}}
	}
	refused := api.MissingCapability(problems)
	refused.CurrentGeneration = generation
	return refused
}
