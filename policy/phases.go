package policy

import (
	"bytes"
	"fmt"
	"sort"
	"strings"
)

// Source says where a phase's policy came from.
type Source string

// The sources of policy.md section 6.
const (
	SourceOverride  Source = "override"
	SourceTask      Source = "task"
	SourceRecipe    Source = "recipe"
	SourceFile      Source = "file"
	SourceInherited Source = "inherited"
	SourceDefault   Source = "default"
)

// Plan is a phases document, resolved. The names are unique.
type Plan struct {
	Phases []Phase `json:"phases"`
}

// Phase is one named policy of a plan.
type Phase struct {
	Name   string   `json:"name"`
	Policy Document `json:"policy"`
	Source Source   `json:"source"`
}

// PhasesSource is the text of one phases document. Name is that of its file: it
// stands in messages, and ".toml" or ".json" at its end decides the syntax. (Any
// other is JSON when it begins with a brace, and TOML when not.)
type PhasesSource struct {
	Name string
	Data []byte
}

// PlanInput is what a plan is made from: File, or the layers Task and Recipe, or
// Overrides alone. Overrides go with either.
type PlanInput struct {
	File, Task, Recipe *PhasesSource
	// Overrides are by phase name, or by its key in spelling 3.
	Overrides map[string]Document
	// Fresh asks for a second sandbox for the evaluation.
	Fresh bool
}

// ReadPlan reads the documents and merges them, phase by phase. The error is an
// Errors with every problem of all of them; the warnings are those of what is
// legal.
func ReadPlan(in PlanInput) (Plan, []Problem, error) {
	if in.File == nil && in.Task == nil && in.Recipe == nil && len(in.Overrides) == 0 {
		return Plan{}, nil, Errors{{Message: "there is nothing to plan: give a phases document, a task, a recipe or an override"}}
	}
	if in.File != nil && (in.Task != nil || in.Recipe != nil) {
		return Plan{}, nil, Errors{{Message: "a phases document stands alone: give it, or give a task and a recipe as layers"}}
	}
	p := &parser{}
	m := &merge{overrides: map[string]Document{}, fresh: in.Fresh}
	for _, l := range []struct {
		source Source
		from   *PhasesSource
	}{{SourceFile, in.File}, {SourceTask, in.Task}, {SourceRecipe, in.Recipe}} {
		if l.from == nil {
			continue
		}
		inner := &parser{}
		m.layers = append(m.layers, inner.layer(l.source, *l.from))
		if in.File == nil {
			inner.prefixMessages(l.from.Name)
		}
		p.problems = append(p.problems, inner.problems...)
		p.warnings = append(p.warnings, inner.warnings...)
	}
	if len(p.problems) > 0 {
		return Plan{}, p.warnings, Errors(p.problems)
	}
	m.addOverrides(p, in.Overrides)
	if len(p.problems) > 0 {
		return Plan{}, p.warnings, Errors(p.problems)
	}
	return Plan{Phases: m.phases()}, p.warnings, nil
}

// prefixMessages says which of several documents a problem is in.
func (p *parser) prefixMessages(name string) {
	for _, list := range [][]Problem{p.problems, p.warnings} {
		for i := range list {
			list[i].Message = "in " + name + ": " + list[i].Message
		}
	}
}

// spelling is one of the three of policy.md section 6.
type spelling uint8

const (
	spellingExeat spelling = iota + 1
	spellingTask
	spellingParams
)

// The names that the spellings share inside a merge: those of spelling 3.
const (
	phaseBaseline           = "baseline"
	phaseRun                = "run"
	phaseEvaluation         = "evaluation"
	phaseEvaluationBaseline = "evaluation.baseline"
)

// layer is one phases document, read: what it says of each phase, by the shared
// names, before anything is merged or inherited.
type layer struct {
	source   Source
	spelling spelling
	policies map[string]Document
	order    []string // the phases of spelling 1, as written
	steps    []string // the steps of spelling 2, as written
	// second are the sandboxes of their own that the document makes: a verifier's
	// ("evaluation.baseline") or a step's verifier's, perhaps by an empty table.
	second map[string]bool
}

func (p *parser) layer(source Source, from PhasesSource) layer {
	l := layer{source: source, policies: map[string]Document{}, second: map[string]bool{}}
	isTOML := strings.HasSuffix(from.Name, ".toml") ||
		!strings.HasSuffix(from.Name, ".json") && !bytes.HasPrefix(bytes.TrimSpace(from.Data), []byte("{"))
	decode := decodeJSON
	if isTOML {
		decode = decodeTOML
	}
	v, problems := decode(from.Data)
	if problems != nil {
		p.problems = append(p.problems, problems...)
		return l
	}
	if v.kind != kindObject {
		p.fail("", `a phases document is an object, {"baseline": POLICY, "phases": {NAME: POLICY}}; this is %s`, v.describe())
		return l
	}
	if has(v, fieldMode, fieldAllowed, fieldDenied) {
		// Read as a task file it would be a file of other people's keys: public.
		p.fail("", `this is a policy, not a phases document; make it the baseline: {"baseline": POLICY}`)
		return l
	}
	switch {
	case isTOML && (has(v, "environment", "agent", "verifier", "steps") || !has(v, "baseline", "phases")):
		l.spelling = spellingTask
		p.taskFile(&l, v)
	case !isTOML && has(v, keyBaseline, keyRun, keyEvaluation, keyEvaluationBaseline):
		l.spelling = spellingParams
		p.params(&l, v)
	default:
		l.spelling = spellingExeat
		p.exeatPhases(&l, v)
	}
	return l
}

func has(v value, names ...string) bool {
	for _, name := range names {
		if _, found := v.get(name); found {
			return true
		}
	}
	return false
}

// policy reads a policy at path and keeps it under name.
func (p *parser) policy(l *layer, name string, v value, path string) {
	before := len(p.problems)
	d := p.document(v, path)
	if len(p.problems) == before {
		l.policies[name] = d
	}
}

// exeatPhases is spelling 1.
func (p *parser) exeatPhases(l *layer, v value) {
	fields := p.fields(v, "", "a phases document", "baseline", "phases")
	if baseline, found := fields["baseline"]; found {
		p.policy(l, phaseBaseline, baseline, "baseline")
	}
	phases, found := fields["phases"]
	if !found {
		return
	}
	if phases.kind != kindObject {
		p.fail("phases", "phases is an object of policies by name; this is %s", phases.describe())
		return
	}
	seen := map[string]bool{}
	for _, m := range phases.members() {
		path := at("phases", m.name)
		switch {
		case seen[m.name]:
			p.fail(path, "%s is written more than once in the same object; keep one", quote(m.name))
			continue
		case m.name == phaseBaseline:
			p.fail(path, "the baseline stands beside phases, not in it; move it up")
		case !phaseName(m.name):
			p.fail(path, "%s is not a phase name: letters, digits and . _ - are legal, 64 in all", quote(m.name))
		}
		seen[m.name] = true
		l.order = append(l.order, m.name)
		p.policy(l, m.name, m.value, path)
	}
}

// phaseName says that a name can stand in a path of the control API and in a log.
func phaseName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return r != '.' && r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}

// The keys of spelling 3.
const (
	keyBaseline           = "baseline_network_policy"
	keyRun                = "run_network_policy"
	keyEvaluation         = "evaluation_network_policy"
	keyEvaluationBaseline = "evaluation_baseline_network_policy"
)

// paramName is the phase of a key of spelling 3.
func paramName(key string) (string, bool) {
	switch key {
	case keyBaseline:
		return phaseBaseline, true
	case keyRun:
		return phaseRun, true
	case keyEvaluation:
		return phaseEvaluation, true
	case keyEvaluationBaseline:
		return phaseEvaluationBaseline, true
	}
	return "", false
}

// params is spelling 3. A parameters file may hold other keys; one that looks
// like a misspelt policy is an error, for a policy that is not read is `public`.
func (p *parser) params(l *layer, v value) {
	keys := []string{keyBaseline, keyRun, keyEvaluation, keyEvaluationBaseline}
	seen := map[string]bool{}
	for _, m := range v.members() {
		path := at("", m.name)
		if seen[m.name] {
			p.fail(path, "%s is written more than once in the same object; keep one", quote(m.name))
			continue
		}
		seen[m.name] = true
		if name, known := paramName(m.name); known {
			p.policy(l, name, m.value, path)
			continue
		}
		lower := strings.ToLower(m.name)
		near, found := nearest(lower, keys)
		advice := ""
		if found {
			advice = fmt.Sprintf("; write %q", near)
		}
		if found || strings.Contains(lower, "policy") || strings.Contains(lower, "network") || m.name == "baseline" || m.name == "phases" {
			p.fail(path, "%s is not a policy of this document, which has %s%s", quote(m.name), strings.Join(keys, ", "), advice)
		} else {
			p.warn(path, "%s is not a policy and is ignored", quote(m.name))
		}
	}
}

// addOverrides files the overrides under the shared names.
func (m *merge) addOverrides(p *parser, overrides map[string]Document) {
	keys := make([]string, 0, len(overrides))
	for key := range overrides {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		name, known := m.overrideName(key)
		switch _, twice := m.overrides[name]; {
		case !known && name == phaseEvaluationBaseline:
			p.fail(key, "the evaluation has a baseline of its own only in a second sandbox; add --fresh")
		case !known:
			p.fail(key, "there is no phase %s to override; there are %s", quote(key), strings.Join(m.names(), ", "))
		case twice:
			p.fail(key, "the phase is overridden twice, by its name and by its key; keep one")
		default:
			m.overrides[name] = overrides[key]
		}
	}
}
