//go:build linux

package sidecar_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sidecar"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// steps notes the order in which a swap touches the parts, and refuses where it
// is told to: a kernel, a disk and flows that fail on demand can't be had for real.
type steps struct {
	mu      sync.Mutex
	done    []string
	refuse  map[string]error
	opened  []netip.Addr
	holding chan struct{} // when not nil, Swap waits for it to be closed
	entered chan struct{}
	revoke  int
	kept    sidecar.State
	inForce *sidecar.Policy
	// seen is the generation in force, as a decision would load it, at each step.
	seen map[string]uint64
}

func (s *steps) step(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, name)
	if s.seen == nil {
		s.seen = map[string]uint64{}
	}
	if c := s.inForce.Load(); c != nil {
		s.seen[name] = c.Generation()
	} else {
		s.seen[name] = 0
	}
	return s.refuse[name]
}

func (s *steps) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.done
	s.done = nil
	return done
}

func (s *steps) Swap(context.Context, *policy.Compiled, []firewall.Attributed) (int, error) {
	if s.entered != nil {
		close(s.entered)
		s.entered = nil
	}
	if s.holding != nil {
		<-s.holding
	}
	return 0, s.step("kernel")
}

func (s *steps) Attribute(_ context.Context, _ string, addrs []netip.Addr, _ []policy.Opening, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = append(s.opened, addrs...)
	return nil
}

func (s *steps) Rejudge(*policy.Compiled) int { return s.revoke + min(0, len(must(s.step("flows")))) }
func (s *steps) Cut(string) bool              { return false }
func (s *steps) List() []api.Flow             { return nil }
func (s *steps) Len() int                     { return 0 }
func (s *steps) Flush()                       { must(s.step("resolver")) }
func (s *steps) Prepare(state sidecar.State) (func() error, error) {
	return func() error {
		s.kept = state
		return s.step("store commits")
	}, s.step("store prepares")
}

func (s *steps) Forget() error { return s.step("store forgets") }

// must keeps an error of a step that cannot be refused from passing unseen.
func must(err error) string {
	if err != nil {
		panic(err)
	}
	return ""
}

func document(t *testing.T, text string) policy.Document {
	t.Helper()
	doc, _, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatalf("policy %s: %v", text, err)
	}
	return doc
}

func allCapabilities() policy.Capabilities {
	yes := true
	return policy.Capabilities{
		DisableInternet: &yes, NetworkAllowlist: &yes, NetworkAllowlistHostnames: &yes,
		NetworkAllowlistWildcardHostnames: &yes, NetworkAllowlistIPv4Addresses: &yes, NetworkAllowlistIPv6Addresses: &yes,
		NetworkAllowlistIPv4CIDRs: &yes, NetworkAllowlistIPv6CIDRs: &yes, DynamicNetworkPolicy: &yes,
		NetworkDenylist: &yes, TargetPorts: &yes, TargetUDP: &yes, ICMP: &yes,
	}
}

// newEngine gives an engine on which `public` is in force.
func newEngine(t *testing.T, s *steps, edit func(*sidecar.Config)) *sidecar.Engine {
	t.Helper()
	e := rawEngine(t, s, edit)
	if err := e.Begin(t.Context()); err != nil {
		t.Fatalf("begin: %v", err)
	}
	s.take()
	return e
}

func rawEngine(t *testing.T, s *steps, edit func(*sidecar.Config)) *sidecar.Engine {
	t.Helper()
	log := audit.New(audit.Config{})
	s.inForce = &sidecar.Policy{}
	config := sidecar.Config{
		Shape: sidecar.Sealed, Policy: document(t, `"public"`), Capabilities: allCapabilities(),
		Log: log, Names: attribution.New(time.Hour, nil), Flows: s, Resolver: s, Kernel: s, Store: s,
	}
	if edit != nil {
		edit(&config)
	}
	e, err := sidecar.New(config, s.inForce)
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	t.Cleanup(func() {
		e.Close()
		if err := log.Close(); err != nil {
			t.Errorf("close the log: %v", err)
		}
	})
	return e
}

func swapTo(t *testing.T, e *sidecar.Engine, text string) (api.SwapResult, error) {
	t.Helper()
	doc := document(t, text)
	return e.Swap(t.Context(), api.SwapRequest{Policy: &doc})
}

func TestASwapChangesTheKernelThenThePointerThenTheOpenFlows(t *testing.T) {
	s := &steps{revoke: 3}
	e := newEngine(t, s, nil)
	result, err := swapTo(t, e, `"no-network"`)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"store prepares", "kernel", "resolver", "flows", "store commits"}
	if got := s.take(); !slices.Equal(got, want) {
		t.Errorf("steps %q, want %q", got, want)
	}
	if s.seen["kernel"] != 1 || s.seen["flows"] != 2 {
		t.Errorf("generation in force at each step: %v; want the old (1) while the kernel changes, the new (2) when flows are judged", s.seen)
	}
	if result.Generation != 2 || result.Revoked != 3 {
		t.Errorf("result %+v, want generation 2 and 3 revoked", result)
	}
}

func TestAFailureLeavesTheOldPolicyInForce(t *testing.T) {
	for step, status := range map[string]int{"kernel": http.StatusServiceUnavailable, "store prepares": 0} {
		t.Run(step, func(t *testing.T) {
			s := &steps{}
			e := newEngine(t, s, nil)
			s.refuse = map[string]error{step: errors.New("no room")}
			_, err := swapTo(t, e, `"no-network"`)
			if err == nil {
				t.Fatal("the swap succeeded")
			}
			var refused *api.Error
			if status != 0 && (!errors.As(err, &refused) || refused.Status != status) {
				t.Errorf("error %v, want status %d", err, status)
			}
			if state := e.Policy(); state.Generation != 1 || state.Policy.Mode != policy.ModePublic {
				t.Errorf("in force: generation %d, %s; want the old", state.Generation, state.Policy.Mode)
			}
			if g := s.inForce.Load().Generation(); g != 1 {
				t.Errorf("decisions are made by generation %d, want 1", g)
			}
			s.refuse = nil
			if _, err := swapTo(t, e, `"no-network"`); err != nil {
				t.Errorf("the next swap: %v", err)
			}
		})
	}
}

func TestAStateThatCannotBeKeptIsSaidButTheNewPolicyStands(t *testing.T) {
	s := &steps{}
	e := newEngine(t, s, nil)
	s.refuse = map[string]error{"store commits": errors.New("disk gone")}
	if _, err := swapTo(t, e, `"no-network"`); err != nil {
		t.Fatal(err)
	}
	if done := s.take(); !slices.Contains(done, "store forgets") {
		t.Errorf("steps %q: a restart would go back to the policy before", done)
	}
	if status := e.Status(); status.Mode != policy.ModeNoNetwork || status.Health[0].OK {
		t.Errorf("status %+v, want no-network in force and the policy's health bad", status)
	}
}

func TestAPolicyThatNeedsWhatIsMissingIsRefusedWhole(t *testing.T) {
	s := &steps{}
	no := false
	e := newEngine(t, s, func(c *sidecar.Config) { c.Capabilities.TargetUDP = &no })
	_, err := swapTo(t, e, `{"network_mode":"allowlist","allowed_hosts":[{"host":"192.0.2.1","port":53,"protocol":"udp"}]}`)
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.CodeCapability {
		t.Fatalf("error %v, want code %s", err, api.CodeCapability)
	}
	if done := s.take(); len(done) != 0 {
		t.Errorf("steps %q were taken for a policy that can't be held", done)
	}
}

func TestOfConcurrentSwapsWithOneGenerationOneWins(t *testing.T) {
	e := newEngine(t, &steps{}, nil)
	doc, generation := document(t, `"no-network"`), uint64(1)
	var won, stale atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			_, err := e.Swap(t.Context(), api.SwapRequest{Policy: &doc, IfGeneration: &generation})
			var refused *api.Error
			switch {
			case err == nil:
				won.Add(1)
			case errors.As(err, &refused) && refused.Code == api.CodeStaleGeneration && refused.CurrentGeneration == 2:
				stale.Add(1)
			}
		})
	}
	group.Wait()
	if won.Load() != 1 || stale.Load() != 7 {
		t.Errorf("%d won, %d stale; want 1 and 7", won.Load(), stale.Load())
	}
}

func TestNothingIsInForceWhenTheFirstPolicyIsRefused(t *testing.T) {
	s := &steps{refuse: map[string]error{"kernel": errors.New("no nf_tables")}}
	e := rawEngine(t, s, nil)
	if err := e.Begin(t.Context()); err == nil {
		t.Fatal("begin succeeded")
	}
	if s.inForce.Load() != nil || e.Status().Ready {
		t.Error("something is in force, or ready, that the kernel refused")
	}
	if err := e.Attribute(t.Context(), "a.test", []netip.Addr{netip.MustParseAddr("192.0.2.1")}, time.Minute); err == nil {
		t.Error("an address was opened with no policy in force")
	}
}

func TestAnAnswerUnderTheOldPolicyOpensNothingUnderTheNew(t *testing.T) {
	s := &steps{}
	e := newEngine(t, s, nil)
	if _, err := swapTo(t, e, `{"network_mode":"allowlist","allowed_hosts":["a.test"]}`); err != nil {
		t.Fatal(err)
	}
	addr := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	if err := e.Attribute(t.Context(), "a.test", addr, time.Minute); err != nil || len(s.opened) != 1 {
		t.Fatalf("attribute: %v, opened %v; want the address opened", err, s.opened)
	}
	s.holding, s.entered = make(chan struct{}), make(chan struct{})
	entered := s.entered
	swapped := make(chan error, 1)
	go func() {
		_, err := swapTo(t, e, `{"network_mode":"allowlist","allowed_hosts":["b.test"]}`)
		swapped <- err
	}()
	<-entered
	answered := make(chan error, 1)
	go func() { answered <- e.Attribute(t.Context(), "a.test", addr, time.Minute) }()
	select {
	case <-answered:
		t.Error("an answer reached the kernel in the middle of a swap")
	case <-time.After(50 * time.Millisecond):
	}
	close(s.holding)
	if err := errors.Join(<-swapped, <-answered); err != nil {
		t.Fatal(err)
	}
	if len(s.opened) != 1 {
		t.Errorf("opened %v: the answer opened an address for a name that the new policy denies", s.opened)
	}
}

func TestNothingIsSettledAmidASwap(t *testing.T) {
	s := &steps{}
	e := newEngine(t, s, nil)
	before, settled := e.Settled()
	if !settled {
		t.Fatal("not settled before any swap")
	}
	s.holding, s.entered = make(chan struct{}), make(chan struct{})
	entered := s.entered
	swapped := make(chan error, 1)
	go func() {
		_, err := swapTo(t, e, `"no-network"`)
		swapped <- err
	}()
	<-entered
	if _, settled := e.Settled(); settled {
		t.Error("settled while the kernel takes the next policy")
	}
	close(s.holding)
	if err := <-swapped; err != nil {
		t.Fatal(err)
	}
	after, settled := e.Settled()
	if !settled || after == before {
		t.Errorf("%d, settled %v, after the swap; %d before", after, settled, before)
	}
	s.refuse, s.holding = map[string]error{"kernel": errors.New("busy")}, nil
	e.Lockdown(t.Context(), "a link appeared")
	if locked, settled := e.Settled(); !settled || locked == after {
		t.Errorf("%d, settled %v, after a lockdown; %d before", locked, settled, after)
	}
}

func TestLockdownDeniesThoughTheKernelRefuses(t *testing.T) {
	s := &steps{}
	e := newEngine(t, s, nil)
	s.refuse = map[string]error{"kernel": errors.New("busy")}
	e.Lockdown(t.Context(), "a link appeared")
	d := s.inForce.Load().Decide(policy.Request{Name: "a.test", Port: 443})
	if d.Verdict != policy.Deny || d.Reason != policy.ReasonMode {
		t.Errorf("decision %+v, want deny mode", d)
	}
	want := []string{"resolver", "flows", "store prepares", "store commits", "kernel"}
	if done := s.take(); !slices.Equal(done, want) {
		t.Errorf("steps %q, want %q: a worker after this one denies, too", done, want)
	}
	if s.kept.Document.Mode != policy.ModeNoNetwork || s.kept.Locked != "a link appeared" || s.kept.Generation != 2 {
		t.Errorf("kept %+v, want no-network, why, and generation 2", s.kept)
	}
	if e.Status().Ready {
		t.Error("ready in lockdown")
	}
	// The kernel is tried again, until it takes the rules.
	s.refuse = nil
	e.Lockdown(t.Context(), "a link appeared")
	if done := s.take(); !slices.Contains(done, "kernel") || e.Locked() != "a link appeared" {
		t.Errorf("steps %q, locked %q; want the kernel tried again", done, e.Locked())
	}
	e.Lockdown(t.Context(), "a link appeared")
	if done := s.take(); len(done) != 0 || e.Policy().Generation != 3 {
		t.Errorf("steps %q, generation %d, for what is locked down already", done, e.Policy().Generation)
	}
	if _, err := swapTo(t, e, `"public"`); err != nil || e.Locked() != "" || s.kept.Locked != "" {
		t.Errorf("a swap: %v, locked %q, kept %q", err, e.Locked(), s.kept.Locked)
	}
}

func TestLockdownReachesTheKernelThoughTheStateCannotBeKept(t *testing.T) {
	for _, step := range []string{"store prepares", "store commits"} {
		s := &steps{}
		e := newEngine(t, s, nil)
		s.refuse = map[string]error{step: errors.New("disk full")}
		e.Lockdown(t.Context(), "a link appeared")
		if done := s.take(); !slices.Contains(done, "kernel") || !slices.Contains(done, "store forgets") {
			t.Errorf("%s fails: steps %q, want the kernel shut, and a restart that denies", step, done)
		}
	}
}
