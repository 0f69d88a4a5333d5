package control

import (
	"context"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

// Engine is what the handlers drive. Its methods are called concurrently. An
// error that wraps an *api.Error is answered as it stands; any other is a 500.
//
// Before Swap, SetPhases and EnterPhase are called the server has read every
// document in the body strictly and checked it against Capabilities, so the
// engine answers for what only it can know: generations, phases, the kernel.
type Engine interface {
	Status() api.Status
	Capabilities() policy.Capabilities
	// Policy is the policy in force, whole: document, generation, phase and lease
	// belong together.
	Policy() api.PolicyState
	// Swap has changed everything when it returns nil, and nothing when it
	// returns an error. It compares IfGeneration itself (api.Stale), under the
	// lock of the swap. It is not cut short by ctx once it has begun to commit.
	Swap(ctx context.Context, req api.SwapRequest) (api.SwapResult, error)
	// Explain decides req by the policy in force, with what is known of it.
	Explain(ctx context.Context, req policy.Request) (api.Explanation, error)
	Phases() api.Phases
	// SetPhases replaces the named policies; the policy in force stays.
	SetPhases(ctx context.Context, phases []api.Phase) error
	// EnterPhase swaps to a named policy (api.NoSuchPhase).
	EnterPhase(ctx context.Context, name string, req api.EnterRequest) (api.SwapResult, error)
	// RenewLease makes the lease in force end after d from now (api.NoLease).
	RenewLease(ctx context.Context, d time.Duration) (api.Lease, error)
	Flows() []api.Flow
	// CutFlow says whether there was such a flow.
	CutFlow(id string) bool
}

// Prober runs the bypass probe; an engine may have none.
type Prober interface {
	Probe(ctx context.Context, req api.ProbeRequest) (api.ProbeReport, error)
}

// ProbeHistory is what a Prober that also runs by itself has found: how often it
// ran, and what it found when it did last.
type ProbeHistory interface {
	LastProbe() (runs uint64, at time.Time, last api.ProbeReport)
}

// EventLog is the part of an *audit.Log that the handlers read.
type EventLog interface {
	Last() uint64
	Read(after uint64, into []audit.Event) (n int, lost uint64)
	Subscribe(after uint64, buffer int) *audit.Subscription
	Summary() []audit.Count
	Totals() []audit.Total
	Stats() audit.Stats
}
