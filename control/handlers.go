package control

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

func (s *Server) getStatus(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, s.config.Engine.Status())
}

func (s *Server) getCapabilities(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, s.config.Engine.Capabilities())
}

func (s *Server) getPolicy(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, s.config.Engine.Policy())
}

func (s *Server) putPolicy(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	req, err := b.swapRequest()
	if err != nil {
		return err
	}
	if err := b.holds(s.config.Engine.Capabilities()); err != nil {
		return err
	}
	result, err := s.config.Engine.Swap(r.Context(), req)
	if err != nil {
		return err
	}
	return s.swapped(w, result, b.warnings)
}

// swapped answers with the warnings of the body beside those of the engine.
func (s *Server) swapped(w http.ResponseWriter, result api.SwapResult, warnings []policy.Problem) error {
	seen := map[policy.Problem]bool{}
	merged := make([]policy.Problem, 0, len(warnings))
	for _, p := range append(warnings, result.Warnings...) {
		p.Path = strings.TrimPrefix(strings.TrimPrefix(p.Path, "policy."), "policy")
		if !seen[p] {
			seen[p] = true
			merged = append(merged, p)
		}
	}
	result.Warnings = merged
	return writeJSON(w, http.StatusOK, result)
}

func (s *Server) checkPolicy(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	document := b.policy()
	if err := b.finish(); err != nil {
		return err
	}
	if err := b.holds(s.config.Engine.Capabilities()); err != nil {
		return err
	}
	state := s.config.Engine.Policy()
	result := api.CheckResult{
		Policy: *document, Generation: state.Generation, Warnings: b.warnings,
		Diff: policy.Compare(policy.Compile(state.Policy, policy.Options{}), policy.Compile(*document, policy.Options{})),
	}
	if result.Warnings == nil {
		result.Warnings = []policy.Problem{}
	}
	return writeJSON(w, http.StatusOK, result)
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	written, requests, err := b.explainRequest()
	if err != nil {
		return err
	}
	result := api.ExplainResult{Explanations: make([]api.Explanation, 0, len(requests))}
	for i, request := range requests {
		explanation, err := s.config.Engine.Explain(r.Context(), request)
		if err != nil {
			return fmt.Errorf("explain %s: %w", written[i], err)
		}
		explanation.Target = written[i]
		result.Explanations = append(result.Explanations, explanation)
	}
	return writeJSON(w, http.StatusOK, result)
}

func (s *Server) getPhases(w http.ResponseWriter, _ *http.Request) error {
	phases := s.config.Engine.Phases()
	if phases.Phases == nil {
		phases.Phases = []api.Phase{}
	}
	return writeJSON(w, http.StatusOK, phases)
}

func (s *Server) putPhases(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	phases, err := b.phasesRequest()
	if err != nil {
		return err
	}
	if err := b.holds(s.config.Engine.Capabilities()); err != nil {
		return err
	}
	if err := s.config.Engine.SetPhases(r.Context(), phases); err != nil {
		return err
	}
	return s.getPhases(w, r)
}

func (s *Server) enterPhase(w http.ResponseWriter, r *http.Request) error {
	name, err := url.PathUnescape(mux.Vars(r)["name"])
	if err != nil {
		return api.Invalid([]policy.Problem{{Path: "name", Message: err.Error()}})
	}
	b, err := readBody(r)
	if err != nil {
		return err
	}
	req, err := b.enterRequest()
	if err != nil {
		return err
	}
	if err := b.holds(s.config.Engine.Capabilities()); err != nil {
		return err
	}
	result, err := s.config.Engine.EnterPhase(r.Context(), name, req)
	if err != nil {
		return err
	}
	return s.swapped(w, result, b.warnings)
}

func (s *Server) renewLease(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	d := b.lease(true)
	if err := b.finish(); err != nil {
		return err
	}
	lease, err := s.config.Engine.RenewLease(r.Context(), time.Duration(d))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, lease)
}

func (s *Server) getFlows(w http.ResponseWriter, _ *http.Request) error {
	flows := s.config.Engine.Flows()
	if flows == nil {
		flows = []api.Flow{}
	}
	return writeJSON(w, http.StatusOK, api.FlowList{Flows: flows})
}

func (s *Server) cutFlow(w http.ResponseWriter, r *http.Request) error {
	id, err := url.PathUnescape(mux.Vars(r)["id"])
	if err != nil || !s.config.Engine.CutFlow(id) {
		return &api.Error{
			Status: http.StatusNotFound, Code: api.CodeNotFound,
			Message: fmt.Sprintf("no open flow %q: GET /v1/flows lists them", mux.Vars(r)["id"]),
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) getSummary(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, api.Summary{
		Since: s.config.Engine.Status().Started, Counts: s.config.Log.Summary(),
	})
}

func (s *Server) probe(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	req, err := b.probeRequest()
	if err != nil {
		return err
	}
	if s.config.Prober == nil {
		return &api.Error{
			Status: http.StatusNotImplemented, Code: api.CodeNotImplemented,
			Message: "this engine has no probe, since nothing more is started in its sandbox: run `exeat run -- exeat probe`",
		}
	}
	if err := noDeadlines(w); err != nil { // it takes long on a busy machine
		return err
	}
	report, err := s.config.Prober.Probe(r.Context(), req)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, report)
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, struct {
		OK bool `json:"ok"`
	}{true})
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) error {
	status := s.config.Engine.Status()
	if status.Ready {
		return writeJSON(w, http.StatusOK, struct {
			Ready bool `json:"ready"`
		}{true})
	}
	var parts []policy.Problem
	for _, h := range status.Health {
		if !h.OK {
			parts = append(parts, policy.Problem{Path: h.Part, Message: h.Message})
		}
	}
	return &api.Error{
		Status: http.StatusServiceUnavailable, Code: api.CodeNotReady,
		Message: "not ready: nothing is allowed until it is", Problems: parts,
	}
}

func (s *Server) getMetrics(w http.ResponseWriter, r *http.Request) error {
	s.metrics.ServeHTTP(w, r)
	return nil
}

func (s *Server) getDescription(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(description)
	return err
}
