package control

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

// dialVariable makes the test binary a client of the socket that it names.
const dialVariable = "EXEAT_CONTROL_TEST_DIAL"

func TestMain(m *testing.M) {
	if path := os.Getenv(dialVariable); path != "" {
		os.Exit(dialAsChild(path))
	}
	if path := os.Getenv(listenVariable); path != "" {
		os.Exit(listenAsChild(path))
	}
	goleak.VerifyTestMain(m)
}

// listenVariable makes this binary a listener at the path that it holds.
const listenVariable = "EXEAT_TEST_LISTEN"

// listenAsChild is a process that listens and answers nothing.
func listenAsChild(path string) int {
	l, err := net.Listen("unix", path)
	if err != nil {
		return 1
	}
	for {
		if _, err := l.Accept(); err != nil {
			return 0
		}
	}
}

// dialAsChild asks for the status and prints what came of it.
func dialAsChild(path string) int {
	c := client.New(path)
	defer c.Close()
	status, err := c.Status(context.Background())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("answered by", status.Version)
	return 0
}

// engine is an engine that swaps documents and nothing else.
type engine struct {
	mu           sync.Mutex
	state        api.PolicyState
	phases       []api.Phase
	flows        []api.Flow
	ready        bool
	capabilities policy.Capabilities
	// swapErr is what the next Swap returns, panics whether it panics.
	swapErr error
	panics  bool
	last    api.SwapRequest
}

func newEngine(t testing.TB) *engine {
	t.Helper()
	e := &engine{ready: true}
	e.state = api.PolicyState{
		Policy: document(t, `{"network_mode": "allowlist", "allowed_hosts": ["pypi.org", "old.example.org:443"]}`), Generation: 3,
		Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Phase: "run", Floor: []string{"floor:evil.example.org"},
	}
	e.flows = []api.Flow{{
		ID: "f1", Opened: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Name: "pypi.org", Port: 443, Protocol: "tcp",
		Client: netip.MustParseAddrPort("198.18.0.1:50000"), Addr: netip.MustParseAddr("192.0.2.1"), Channel: audit.ChannelTLS,
		Rule: "pypi.org", Generation: 3, BytesOut: 1, BytesIn: 2,
	}}
	yes, no := true, false
	e.capabilities = policy.Capabilities{
		DisableInternet: &yes, NetworkAllowlist: &yes, NetworkAllowlistHostnames: &yes,
		NetworkAllowlistWildcardHostnames: &yes, NetworkAllowlistIPv4Addresses: &yes, NetworkAllowlistIPv6Addresses: &yes,
		NetworkAllowlistIPv4CIDRs: &yes, NetworkAllowlistIPv6CIDRs: &yes, DynamicNetworkPolicy: &yes,
		NetworkDenylist: &yes, TargetPorts: &yes, TargetUDP: &no,
	}
	return e
}

func document(t testing.TB, text string) policy.Document {
	t.Helper()
	doc, _, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatalf("policy %s: %v", text, err)
	}
	return doc
}

func (e *engine) Status() api.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return api.Status{
		Version: "test", Shape: "sealed", PID: os.Getpid(), Started: e.state.Since, Ready: e.ready,
		Mode: e.state.Policy.Mode, Phase: e.state.Phase, Generation: e.state.Generation, Since: e.state.Since,
		Lease: e.state.Lease, Flows: len(e.flows),
		Health: []api.Health{{Part: "policy", OK: true}, {Part: "resolver", OK: e.ready, Message: "no upstream answers"}},
	}
}

func (e *engine) Capabilities() policy.Capabilities { return e.capabilities }

func (e *engine) Policy() api.PolicyState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

func (e *engine) Swap(_ context.Context, req api.SwapRequest) (api.SwapResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.panics {
		panic("on purpose")
	}
	if e.swapErr != nil {
		return api.SwapResult{}, fmt.Errorf("swap: %w", e.swapErr)
	}
	if req.IfGeneration != nil && *req.IfGeneration != e.state.Generation {
		return api.SwapResult{}, api.Stale(*req.IfGeneration, e.state.Generation)
	}
	e.last = req
	e.state.Policy, e.state.Phase, e.state.Lease = *req.Policy, req.Phase, nil
	e.state.Generation++
	if req.For != 0 {
		e.state.Lease = &api.Lease{Expires: e.state.Since.Add(time.Duration(req.For))}
		if req.Then != nil {
			e.state.Lease.Then = *req.Then
		}
	}
	return api.SwapResult{
		Generation: e.state.Generation, Revoked: 2, TookUS: 150, Phase: req.Phase, Lease: e.state.Lease,
	}, nil
}

func (e *engine) Explain(_ context.Context, req policy.Request) (api.Explanation, error) {
	return api.Explanation{
		Verdict: policy.Allow, Reason: policy.ReasonRule, Rule: "pypi.org", Name: req.Name, Addr: req.Addr, Port: req.Port,
		Protocol: req.Protocol.String(), Generation: 3,
	}, nil
}

func (e *engine) Phases() api.Phases {
	e.mu.Lock()
	defer e.mu.Unlock()
	return api.Phases{Current: e.state.Phase, Phases: e.phases}
}

func (e *engine) SetPhases(_ context.Context, phases []api.Phase) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.phases = phases
	return nil
}

func (e *engine) EnterPhase(ctx context.Context, name string, req api.EnterRequest) (api.SwapResult, error) {
	for _, p := range e.Phases().Phases {
		if p.Name == name {
			return e.Swap(ctx, api.SwapRequest{
				Policy: &p.Policy, Phase: name, IfGeneration: req.IfGeneration, For: req.For, Then: req.Then,
			})
		}
	}
	return api.SwapResult{}, api.NoSuchPhase(name, []string{"run"})
}

func (e *engine) RenewLease(_ context.Context, d time.Duration) (api.Lease, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state.Lease == nil {
		return api.Lease{}, api.NoLease()
	}
	e.state.Lease.Expires = e.state.Since.Add(d)
	return *e.state.Lease, nil
}

func (e *engine) Flows() []api.Flow {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flows
}

func (e *engine) CutFlow(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.flows) == 0 || e.flows[0].ID != id {
		return false
	}
	e.flows = nil
	return true
}

// prober finds one leak.
type prober struct{}

func (prober) LastProbe() (runs uint64, at time.Time, last api.ProbeReport) {
	return 5, time.Unix(1700000000, 0), api.ProbeReport{Held: 80, Leaks: 1, NotProven: 70}
}

func (prober) Probe(context.Context, api.ProbeRequest) (api.ProbeReport, error) {
	return api.ProbeReport{Leaks: 1, Cases: []api.ProbeCase{{
		ID: "B01", Attack: "plain TCP", Expected: "refused", Seen: "an answer", Verdict: api.ProbeLeak,
	}}}, nil
}

// serving is a server on a real socket.
type serving struct {
	path   string
	engine *engine
	log    *audit.Log
	client *client.Client
	stop   func() error
}

// start serves until the test ends; change may adapt the configuration.
func start(t testing.TB, change func(*Config)) *serving {
	t.Helper()
	s := &serving{path: filepath.Join(shortDir(t), "exeat.sock"), engine: newEngine(t), log: audit.New(audit.Config{RingSize: 256})}
	config := Config{Engine: s.engine, Log: s.log}
	if change != nil {
		change(&config)
	}
	server, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := Listen(s.path, config.Access)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, ln) }()
	s.stop = sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	s.client = client.New(s.path)
	t.Cleanup(func() {
		s.client.Close()
		if err := s.stop(); err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := s.log.Close(); err != nil {
			t.Errorf("close the log: %v", err)
		}
	})
	return s
}

// shortDir is a directory with a name short enough for a socket's path.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "exeat")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// dial gives a raw connection.
func (s *serving) dial(t testing.TB) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Logf("close: %v", err)
		}
	})
	return conn
}
