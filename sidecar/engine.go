//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// Shape is how the engine stands (design.md section 2).
type Shape string

// The shapes.
const (
	Sealed Shape = "sealed"
	Joined Shape = "joined"
)

// Kernel is the packet filter as a swap needs it.
type Kernel interface {
	// Swap makes the kernel hold c with these attributions, whole, before it
	// returns nil; when it returns an error the old policy stands. It says how many
	// flows that bypass the proxy it cut.
	Swap(ctx context.Context, c *policy.Compiled, attributed []firewall.Attributed) (revoked int, err error)
	// Attribute opens what openings, those of name, say on addrs, for ttl.
	Attribute(ctx context.Context, name string, addrs []netip.Addr, openings []policy.Opening, ttl time.Duration) error
}

// Flows is the registry of the proxied flows as the engine needs it.
type Flows interface {
	// Rejudge aborts every open flow that c forbids and says how many; when it
	// returns no byte of them is sent any more.
	Rejudge(c *policy.Compiled) (revoked int)
	Cut(id string) bool
	List() []api.Flow
	Len() int
}

// Resolver is the part of the DNS filter that a swap touches.
type Resolver interface {
	// Flush forgets the cached answers, and keeps answers that are under way from
	// being given without being judged again.
	Flush()
}

// Store keeps the state over a restart. Prepare writes it aside; commit puts it
// in force and can only fail as a rename can.
type Store interface {
	Prepare(s State) (commit func() error, err error)
	// Forget removes what was kept, so that a restart denies.
	Forget() error
}

// Config is what an Engine is made of. Log, Names, Flows, Resolver and Kernel
// are required.
type Config struct {
	Version string
	Shape   Shape
	Name    string

	Policy policy.Document
	// Phase names Policy; Phases are the named policies that may be entered.
	Phase  string
	Phases []policy.Phase
	Floor  []policy.Target
	// Capabilities are what this enforcement point was found to hold.
	Capabilities policy.Capabilities
	// Generation is that of the first policy; 0 is 1. A restart goes on counting.
	Generation uint64
	// Lease, where not nil, is what is left of the lease of a run before.
	Lease *api.Lease

	Log      *audit.Log
	Names    *attribution.Table
	Flows    Flows
	Resolver Resolver
	Kernel   Kernel
	// Store, where not nil, keeps what is in force over a restart.
	Store Store
	// Health gives the state of each part of the enforcement besides the policy:
	// one that is not OK takes readiness away. Nil is none.
	Health func() []api.Health
	// Outside gives the state of what is beyond the sandbox, which takes nothing
	// from the enforcement. Nil is none.
	Outside func() []api.Health
	// OwnTraffic is reported by Status.
	OwnTraffic string
}

// Engine holds the policy in force. Its methods are safe for concurrent use.
type Engine struct {
	config  Config
	started time.Time
	inForce *Policy

	// swapping is held over a whole transaction: one swap at a time.
	swapping sync.Mutex
	// attributing is held for reading while an answer is written to the kernel and
	// for writing while kernel and pointer change, so that no name is opened under
	// one policy by the answer to a question that another allowed.
	// Lock order: swapping, attributing, mu.
	attributing sync.RWMutex

	mu    sync.RWMutex
	state State
	lease *leaseTimer
	// locked is why everything is denied, once the kernel does so too.
	locked string

	// resumed, where not nil, is closed once the kernel has what Resume assumed.
	resumed chan struct{}

	// changes counts the beginnings and the ends of commits.
	changes atomic.Uint64

	ready  atomic.Bool
	breach atomic.Pointer[string]
	leases sync.WaitGroup
	closed context.Context
	close  context.CancelFunc
}

// Policy is the policy in force, for the parts that decide by it. It is swapped
// whole: a reader loads it once a request.
type Policy struct {
	p atomic.Pointer[policy.Compiled]
}

// Load gives the policy in force; nil before the first, which denies all.
func (p *Policy) Load() *policy.Compiled { return p.p.Load() }

// State is what is in force, as it outlives a restart.
type State struct {
	Document   policy.Document `json:"policy"`
	Generation uint64          `json:"generation"`
	Phase      string          `json:"phase"`
	Since      time.Time       `json:"since"`
	Lease      *api.Lease      `json:"lease,omitempty"`
	Phases     []policy.Phase  `json:"phases,omitempty"`
	// Locked is why everything is denied, where that was no swap.
	Locked string `json:"locked,omitempty"`
}

// Validate reports everything that is missing from c.
func (c *Config) Validate() error {
	var problems []error
	missing := func(absent bool, name string) {
		if absent {
			problems = append(problems, fmt.Errorf("sidecar: config without %s", name))
		}
	}
	missing(c.Log == nil, "Log")
	missing(c.Names == nil, "Names")
	missing(c.Flows == nil, "Flows")
	missing(c.Resolver == nil, "Resolver")
	missing(c.Kernel == nil, "Kernel")
	if c.Shape != Sealed && c.Shape != Joined {
		problems = append(problems, fmt.Errorf("sidecar: shape %q: want %s or %s", c.Shape, Sealed, Joined))
	}
	return errors.Join(problems...)
}

// New makes an engine on which nothing is in force yet: everything is denied as
// unprotected until Begin. inForce is what the resolver and the proxy decide by.
func New(c Config, inForce *Policy) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{config: c, started: time.Now(), inForce: inForce}
	e.state.Phases = c.Phases
	e.state.Generation = max(c.Generation, 1) - 1
	e.closed, e.close = context.WithCancel(context.Background())
	return e, nil
}

// Resume lets the resolver and the proxy decide by the first policy before Begin,
// where the kernel holds it already. Only Begin makes it whole: until then no address
// is opened for a name. It must be called before anything decides.
func (e *Engine) Resume() {
	e.resumed = make(chan struct{})
	e.inForce.p.Store(policy.Compile(e.config.Policy, policy.Options{Floor: e.config.Floor, Generation: e.state.Generation + 1}))
}

// Begin puts the first policy in force. On an error nothing is: everything is
// still denied.
func (e *Engine) Begin(ctx context.Context) error {
	first := change{document: e.config.Policy, phase: e.config.Phase}
	if l := e.config.Lease; l != nil {
		first.lease, first.until = &l.Then, l.Expires
		if !time.Now().Before(l.Expires) {
			// It ended while nobody was there to end it: its policy must not be in
			// force for another moment.
			first = e.following(*l)
		}
	}
	if _, err := e.swap(ctx, first); err != nil {
		return fmt.Errorf("put the first policy in force: %w", err)
	}
	if e.resumed != nil {
		close(e.resumed)
	}
	return nil
}

// SetReady says whether readiness has been earned, and records the change.
func (e *Engine) SetReady(ready bool, why string) {
	if e.ready.Swap(ready) != ready {
		e.config.Log.Record(audit.Event{Kind: audit.KindReady, Message: why, Generation: e.generation()})
	}
}

// InForce is what the resolver and the proxy decide by, for whoever explains
// verdicts of the kernel.
func (e *Engine) InForce() *Policy { return e.inForce }

// Settled gives a number that stands for the policy in force: another after each swap.
// It is false in the course of one, when the kernel may hold the next policy while all
// others decide by the one before, and flows are being ended.
func (e *Engine) Settled() (number uint64, settled bool) {
	number = e.changes.Load()
	return number, number%2 == 0
}

// Attribute opens in the kernel what the policy in force opens for name, before
// the resolver gives the answer to the sandbox.
func (e *Engine) Attribute(ctx context.Context, name string, addrs []netip.Addr, ttl time.Duration) error {
	if e.resumed != nil {
		select {
		case <-e.resumed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e.attributing.RLock()
	defer e.attributing.RUnlock()
	c := e.inForce.Load()
	if c == nil {
		return errors.New("no policy is in force")
	}
	openings := c.Openings(name)
	if len(openings) == 0 {
		return nil
	}
	return e.config.Kernel.Attribute(ctx, name, addrs, openings, ttl)
}

// Close ends the leases; what is in force stays in the kernel.
func (e *Engine) Close() {
	e.close()
	e.mu.Lock()
	if e.lease != nil {
		e.lease.stop()
	}
	e.mu.Unlock()
	e.leases.Wait()
}

func (e *Engine) generation() uint64 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.state.Generation
}

// Phase names the phase in force, for events that have none.
func (e *Engine) Phase() string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.state.Phase
}

// Status is the answer of GET /v1/status.
func (e *Engine) Status() api.Status {
	e.mu.RLock()
	s := api.Status{
		Version: e.config.Version, Shape: string(e.config.Shape), Name: e.config.Name,
		PID: os.Getpid(), Started: e.started,
		Mode: e.state.Document.Mode, Phase: e.state.Phase, Generation: e.state.Generation,
		Since: e.state.Since, Lease: e.state.Lease, OwnTraffic: e.config.OwnTraffic,
	}
	e.mu.RUnlock()
	s.Flows = e.config.Flows.Len()
	s.Health = []api.Health{e.policyHealth()}
	if e.config.Health != nil {
		s.Health = append(s.Health, e.config.Health()...)
	}
	s.Ready = e.ready.Load()
	for _, h := range s.Health {
		s.Ready = s.Ready && h.OK
	}
	if e.config.Outside != nil {
		s.Health = append(s.Health, e.config.Outside()...)
	}
	return s
}

func (e *Engine) policyHealth() api.Health {
	h := api.Health{Part: "policy", OK: e.inForce.Load() != nil}
	if !h.OK {
		h.Message = "no policy is in force: everything is denied"
	}
	if why := e.breach.Load(); why != nil {
		h.OK, h.Message = false, *why
	}
	return h
}

// Capabilities are what this enforcement point holds.
func (e *Engine) Capabilities() policy.Capabilities { return e.config.Capabilities }

// Policy is the answer of GET /v1/policy.
func (e *Engine) Policy() api.PolicyState {
	e.mu.RLock()
	defer e.mu.RUnlock()
	state := api.PolicyState{
		Policy: e.state.Document, Generation: e.state.Generation,
		Since: e.state.Since, Phase: e.state.Phase, Lease: e.state.Lease,
	}
	for _, t := range e.config.Floor {
		state.Floor = append(state.Floor, t.String())
	}
	return state
}

// Flows is the answer of GET /v1/flows.
func (e *Engine) Flows() []api.Flow { return e.config.Flows.List() }

// CutFlow aborts one flow; false when there is none of that id.
func (e *Engine) CutFlow(id string) bool { return e.config.Flows.Cut(id) }
