package control

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
)

func TestClientErrorsBranch(t *testing.T) {
	s := start(t, nil)
	ctx := context.Background()
	stale := uint64(1)
	doc := document(t, `"public"`)
	_, err := s.client.Swap(ctx, api.SwapRequest{Policy: &doc, IfGeneration: &stale})
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.CodeStaleGeneration || refused.CurrentGeneration != 3 {
		t.Errorf("a stale swap: %v", err)
	}
	if errors.Is(err, client.ErrUnreachable) {
		t.Error("a refusal is told as unreachable")
	}

	_, err = s.client.SwapDocument(ctx, []byte(`{"network_mode": "allowlist", "allowed_hosts": ["a b"], "x": 1}`), api.SwapRequest{})
	if !errors.As(err, &refused) || len(refused.Problems) != 2 {
		t.Errorf("a faulty document: %v", err)
	}
	lease := api.SwapRequest{For: 60e9, Then: &api.Then{Phase: "run"}, Phase: "evaluation"}
	result, err := s.client.SwapDocument(ctx, []byte(`"no-network"`), lease)
	if err != nil || result.Generation != 4 || s.engine.last.Then.Phase != "run" || s.engine.last.For != lease.For {
		t.Errorf("a swap: %+v, %v; the engine got %+v", result, err, s.engine.last)
	}

	gone := client.New(filepath.Join(shortDir(t), "nothing.sock"))
	defer gone.Close()
	if _, err := gone.Status(ctx); !errors.Is(err, client.ErrUnreachable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.client.Status(ended); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnreachable) {
		t.Errorf("a caller who gave up: %v", err)
	}
}

func TestClientReadsWhatTheServerWrites(t *testing.T) {
	s := start(t, func(c *Config) { c.Prober = prober{} })
	ctx := context.Background()
	state, err := s.client.Policy(ctx)
	if err != nil || state.Generation != 3 || len(state.Policy.Allowed) != 2 {
		t.Errorf("policy %+v, %v", state, err)
	}
	phases, err := s.client.SetPhases(ctx, []api.Phase{{Name: "a b", Policy: state.Policy}})
	if err != nil || len(phases.Phases) != 1 {
		t.Errorf("phases %+v, %v", phases, err)
	}
	entered, err := s.client.EnterPhase(ctx, "a b", api.EnterRequest{For: 60e9})
	if err != nil || entered.Lease == nil || entered.Lease.Then.Policy == nil {
		t.Errorf("entered %+v, %v: want a lease that ends in a policy", entered, err)
	}
	explained, err := s.client.Explain(ctx, "pypi.org")
	if err != nil || len(explained) != 1 || explained[0].Verdict.String() != "allow" {
		t.Errorf("explained %+v, %v", explained, err)
	}
	flows, err := s.client.Flows(ctx)
	if err != nil || len(flows) != 1 || flows[0].Client.Port() != 50000 {
		t.Errorf("flows %+v, %v", flows, err)
	}
	if err := s.client.CutFlow(ctx, "f1"); err != nil {
		t.Errorf("cut: %v", err)
	}
	checked, err := s.client.Check(ctx, document(t, `"no-network"`))
	if err != nil || len(checked.Diff.Denied) == 0 {
		t.Errorf("check %+v, %v", checked, err)
	}
	capabilities, err := s.client.Capabilities(ctx)
	if err != nil || capabilities.ICMP != nil || *capabilities.TargetUDP {
		t.Errorf("capabilities %+v, %v", capabilities, err)
	}
	report, err := s.client.Probe(ctx, api.ProbeRequest{})
	if err != nil || report.Leaks != 1 {
		t.Errorf("probe %+v, %v", report, err)
	}
	metrics, err := s.client.Metrics(ctx)
	for _, want := range []string{
		"exeat_policy_generation 4", "exeat_probe_runs_total 5", "exeat_probe_last_run_timestamp_seconds 1.7e+09",
		`exeat_probe_cases{verdict="held"} 80`, `exeat_probe_cases{verdict="leak"} 1`, `exeat_probe_cases{verdict="not-proven"} 70`,
	} {
		if err != nil || !strings.Contains(string(metrics), want+"\n") {
			t.Errorf("metrics %v, want %s in them:\n%s", err, want, metrics)
		}
	}
	s.engine.mu.Lock()
	s.engine.ready = false
	s.engine.mu.Unlock()
	var notReady *api.Error
	if err := s.client.Ready(ctx); !errors.As(err, &notReady) || notReady.Code != api.CodeNotReady {
		t.Errorf("ready: %v", err)
	}
	if data, err := json.Marshal(api.Then{}); err != nil || string(data) != `"no-network"` {
		t.Errorf("the zero Then is %s, %v", data, err)
	}
}
