//go:build linux

package sidecar_test

import (
	"errors"
	"testing"
	"time"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sidecar"
)

// phases are what the lease tests move between.
func phases(t *testing.T) []policy.Phase {
	return []policy.Phase{
		{Name: "setup", Policy: document(t, `"public"`)},
		{Name: "run", Policy: document(t, `{"network_mode":"allowlist","allowed_hosts":["api.test"]}`)},
	}
}

// eventually waits for a condition that only time brings about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 3000 {
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within 30 s: %s", what)
}

func TestALeaseEndsInNoNetworkWhereNothingElseIsSaid(t *testing.T) {
	e := newEngine(t, &steps{}, func(c *sidecar.Config) { c.Phases = phases(t) })
	result, err := e.EnterPhase(t.Context(), "run", api.EnterRequest{For: api.Duration(50 * time.Millisecond)})
	if err != nil || result.Lease == nil {
		t.Fatalf("enter: %v, lease %v", err, result.Lease)
	}
	eventually(t, "no-network", func() bool { return e.Policy().Policy.Mode == policy.ModeNoNetwork })
	if state := e.Policy(); state.Lease != nil || state.Phase != "" {
		t.Errorf("state %+v, want no lease and no phase", state)
	}
}

func TestALeaseEndsInThePhaseThatThenNames(t *testing.T) {
	e := newEngine(t, &steps{}, func(c *sidecar.Config) { c.Phases = phases(t) })
	_, err := e.EnterPhase(t.Context(), "setup", api.EnterRequest{
		For: api.Duration(50 * time.Millisecond), Then: &api.Then{Phase: "run"},
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "phase run", func() bool { return e.Policy().Phase == "run" })
}

func TestARenewedLeaseGoesOn(t *testing.T) {
	e := newEngine(t, &steps{}, func(c *sidecar.Config) { c.Phases = phases(t) })
	if _, err := e.EnterPhase(t.Context(), "run", api.EnterRequest{For: api.Duration(300 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		time.Sleep(100 * time.Millisecond)
		if _, err := e.RenewLease(t.Context(), 300*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if got := e.Policy().Phase; got != "run" {
		t.Errorf("phase %q after 500 ms of renewals, want run", got)
	}
	eventually(t, "the end of the lease", func() bool { return e.Policy().Policy.Mode == policy.ModeNoNetwork })
}

func TestASwapReplacesTheLease(t *testing.T) {
	e := newEngine(t, &steps{}, func(c *sidecar.Config) { c.Phases = phases(t) })
	if _, err := e.EnterPhase(t.Context(), "run", api.EnterRequest{For: api.Duration(100 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.EnterPhase(t.Context(), "setup", api.EnterRequest{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	if state := e.Policy(); state.Phase != "setup" || state.Lease != nil {
		t.Errorf("phase %q, lease %v: the old lease ended the new phase", state.Phase, state.Lease)
	}
	if _, err := e.RenewLease(t.Context(), time.Second); !hasCode(err, api.CodeNoLease) {
		t.Errorf("renewing nothing: %v, want %s", err, api.CodeNoLease)
	}
}

func TestALeaseThatTheKernelWillNotEndIsLockedDown(t *testing.T) {
	s := &steps{}
	e := newEngine(t, s, func(c *sidecar.Config) { c.Phases = phases(t) })
	if _, err := e.EnterPhase(t.Context(), "setup", api.EnterRequest{For: api.Duration(50 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.refuse = map[string]error{"kernel": errors.New("busy")}
	s.mu.Unlock()
	eventually(t, "deny by the pointer", func() bool {
		return s.inForce.Load().Decide(policy.Request{Name: "a.test", Port: 443}).Verdict == policy.Deny
	})
}

func TestALeaseThatEndedWhileNobodyWasThereIsNotEnteredAgain(t *testing.T) {
	s := &steps{}
	e := newEngine(t, s, func(c *sidecar.Config) {
		c.Phases, c.Phase = phases(t), "setup"
		c.Lease = &api.Lease{Expires: time.Now().Add(-time.Second), Then: api.Then{Phase: "run"}}
	})
	if state := e.Policy(); state.Phase != "run" || state.Generation != 1 {
		t.Errorf("began in phase %q, generation %d; want run at once", state.Phase, state.Generation)
	}
}

func TestALeaseIsRefusedWhereItsEndCannotBe(t *testing.T) {
	e := newEngine(t, &steps{}, func(c *sidecar.Config) { c.Phases = phases(t) })
	for name, test := range map[string]struct {
		request api.EnterRequest
		code    api.Code
	}{
		"a phase that does not exist": {api.EnterRequest{For: api.Duration(time.Second), Then: &api.Then{Phase: "nowhere"}}, api.CodeNotFound},
		"then without for":            {api.EnterRequest{Then: &api.Then{Phase: "run"}}, api.CodeInvalid},
		"a time in the past":          {api.EnterRequest{For: api.Duration(-time.Second)}, api.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := e.EnterPhase(t.Context(), "run", test.request); !hasCode(err, test.code) {
				t.Errorf("error %v, want %s", err, test.code)
			}
		})
	}
	if _, err := e.EnterPhase(t.Context(), "nowhere", api.EnterRequest{}); !hasCode(err, api.CodeNotFound) {
		t.Errorf("error %v, want %s", err, api.CodeNotFound)
	}
	if got := e.Policy().Generation; got != 1 {
		t.Errorf("generation %d, want 1: nothing was to change", got)
	}
}

func TestThePhaseThatALeaseEndsInCannotBeTakenAway(t *testing.T) {
	e := newEngine(t, &steps{}, func(c *sidecar.Config) { c.Phases = phases(t) })
	_, err := e.EnterPhase(t.Context(), "setup", api.EnterRequest{For: api.Duration(time.Minute), Then: &api.Then{Phase: "run"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.SetPhases(t.Context(), nil); !hasCode(err, api.CodeInvalid) {
		t.Errorf("error %v, want %s", err, api.CodeInvalid)
	}
}

func hasCode(err error, code api.Code) bool {
	var refused *api.Error
	return errors.As(err, &refused) && refused.Code == code
}
