package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

func (b *body) swapRequest() (api.SwapRequest, error) {
	req := api.SwapRequest{Policy: b.policy(), IfGeneration: b.ifGeneration(), For: b.lease(false)}
	_, lease := b.members["for"]
	req.Then = b.then(lease)
	if name, ok := b.text("phase"); ok {
		b.phaseName("phase", name)
		req.Phase = name
	}
	return req, b.finish()
}

func (b *body) enterRequest() (api.EnterRequest, error) {
	req := api.EnterRequest{IfGeneration: b.ifGeneration(), For: b.lease(false)}
	_, lease := b.members["for"]
	req.Then = b.then(lease)
	return req, b.finish()
}

// explainRequest gives what is asked about, and how it was written.
func (b *body) explainRequest() ([]string, []policy.Request, error) {
	const most = 1000
	var written []string
	raw, ok := b.member("targets")
	switch {
	case !ok:
		b.complain("targets", "is missing: want a list of targets, such as [\"pypi.org:443\"]")
	case isNull(raw) || json.Unmarshal(raw, &written) != nil:
		b.complain("targets", "%s: want a list of strings", excerpt(raw))
	case len(written) == 0 || len(written) > most:
		b.complain("targets", "has %d targets: want 1 to %d", len(written), most)
	}
	requests := make([]policy.Request, len(written))
	for i, target := range written {
		request, err := policy.ParseAskTarget(target)
		if err != nil {
			b.complainAll(fmt.Sprintf("targets[%d]", i), err)
		}
		requests[i] = request
	}
	return written, requests, b.finish()
}

func (b *body) phasesRequest() ([]api.Phase, error) {
	raw, ok := b.member("phases")
	var items []json.RawMessage
	switch {
	case !ok:
		b.complain("phases", "is missing: want a list of {\"name\": …, \"policy\": …}")
	case isNull(raw) || json.Unmarshal(raw, &items) != nil:
		b.complain("phases", "%s: want a list of {\"name\": …, \"policy\": …}", excerpt(raw))
	}
	phases := make([]api.Phase, 0, len(items))
	seen := map[string]bool{}
	for i, item := range items {
		phase := b.phase(fmt.Sprintf("phases[%d]", i), item)
		if seen[phase.Name] && phase.Name != "" {
			b.complain(fmt.Sprintf("phases[%d].name", i), "%q is given twice", phase.Name)
		}
		seen[phase.Name] = true
		phases = append(phases, phase)
	}
	return phases, b.finish()
}

// phase reads one entry of a list, and passes its problems on.
func (b *body) phase(path string, raw json.RawMessage) api.Phase {
	item := parseBody(raw)
	var phase api.Phase
	if name, ok := item.text("name"); ok {
		item.phaseName("name", name)
		phase.Name = name
	} else if _, given := item.members["name"]; !given {
		item.complain("name", "is missing: want the name of the phase")
	}
	if document := item.policy(); document != nil {
		phase.Policy = *document
	}
	if source, ok := item.text("source"); ok {
		phase.Source = policy.Source(source)
		if !slices.Contains(sources(), phase.Source) {
			item.complain("source", "%q: want one of %v", source, sources())
		}
	}
	if err := item.finish(); err != nil {
		for _, p := range item.problems {
			b.complain(below(path, p.Path), "%s", p.Message)
		}
	}
	for _, w := range item.warnings {
		b.warnings = append(b.warnings, policy.Problem{Path: below(path, w.Path), Message: w.Message})
	}
	for _, d := range item.documents {
		b.documents = append(b.documents, pathDocument{below(path, d.path), d.document})
	}
	return phase
}

func sources() []policy.Source {
	return []policy.Source{
		policy.SourceOverride, policy.SourceTask, policy.SourceRecipe,
		policy.SourceFile, policy.SourceInherited, policy.SourceDefault,
	}
}

func (b *body) probeRequest() (api.ProbeRequest, error) {
	var req api.ProbeRequest
	if raw, ok := b.member("cases"); ok && (isNull(raw) || json.Unmarshal(raw, &req.Cases) != nil || len(req.Cases) > 1000) {
		b.complain("cases", "%s: want a list of at most 1000 case numbers, such as [\"B01\"]", excerpt(raw))
	}
	if raw, ok := b.member("safe"); ok && (isNull(raw) || json.Unmarshal(raw, &req.Safe) != nil) {
		b.complain("safe", "%s: want true or false", excerpt(raw))
	}
	return req, b.finish()
}

// holds checks every document of the body against what can be held here, and
// adds what that warns of.
func (b *body) holds(c policy.Capabilities) error {
	var missing []policy.Problem
	for _, d := range b.documents {
		warnings, err := c.Check(d.document)
		for _, w := range warnings {
			b.warnings = append(b.warnings, policy.Problem{Path: below(d.path, w.Path), Message: w.Message})
		}
		if err != nil {
			found := body{}
			found.complainAll(d.path, err)
			missing = append(missing, found.problems...)
		}
	}
	if len(missing) > 0 {
		return api.MissingCapability(missing)
	}
	return nil
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
