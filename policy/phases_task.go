package policy

import (
	"fmt"
	"strings"
)

// taskFile is spelling 2: tables that also hold other people's keys.
func (p *parser) taskFile(l *layer, v value) {
	p.warnNear(v, "", "environment", "agent", "verifier", "steps", "name")
	if has(v, "baseline", "phases") {
		p.warn("", "baseline and phases are ignored in a task file, which has the tables environment, agent, verifier and steps")
	}
	p.tables(l, v, "", "")
	steps, found := v.get("steps")
	if !found {
		return
	}
	if steps.kind != kindArray {
		p.fail("steps", "steps is a list of tables, [[steps]]; this is %s", steps.describe())
		return
	}
	seen := map[string]bool{}
	for i, step := range steps.items() {
		path := atIndex("steps", i)
		if step.kind != kindObject {
			p.fail(path, "a step is a table, [[steps]]; this is %s", step.describe())
			continue
		}
		p.warnNear(step, path, "environment", "agent", "verifier", "name")
		name, ok := p.stepName(step, path, seen)
		if !ok {
			continue
		}
		l.steps = append(l.steps, name)
		p.tables(l, step, path, stepPrefix(name))
	}
}

func (p *parser) stepName(step value, path string, seen map[string]bool) (string, bool) {
	name, found := step.get("name")
	path = at(path, "name")
	switch {
	case !found:
		p.fail(path, "name is missing; a step's phases are named by it (step.NAME.agent)")
	case name.kind != kindString || !phaseName(name.text):
		p.fail(path, "a step's name is a string of letters, digits and . _ -, 64 at most; this is %s", name.describe())
	case seen[name.text]:
		p.fail(path, "two steps have the name %s; their phases would be the same", quote(name.text))
	default:
		seen[name.text] = true
		return name.text, true
	}
	return "", false
}

func stepPrefix(name string) string { return "step." + name + "." }

// tables reads the tables of a task file, or of one of its steps.
func (p *parser) tables(l *layer, v value, path, prefix string) {
	p.table(l, v, "environment", path, prefix+phaseBaseline)
	p.table(l, v, "agent", path, prefix+phaseRun)
	p.table(l, v, "verifier", path, prefix+phaseEvaluation)
	verifier, found := v.get("verifier")
	if !found || verifier.kind != kindObject {
		return
	}
	if _, found := verifier.get("environment"); found {
		l.second[prefix+phaseEvaluationBaseline] = true
		p.table(l, verifier, "environment", at(path, "verifier"), prefix+phaseEvaluationBaseline)
	}
}

// table reads the policy in one table, if the table has one.
func (p *parser) table(l *layer, v value, table, path, name string) {
	t, found := v.get(table)
	if !found {
		return
	}
	path = at(path, table)
	if t.kind != kindObject {
		p.fail(path, "%s is a table with network_mode; this is %s", table, t.describe())
		return
	}
	p.warnNear(t, path, fieldMode, fieldAllowed, fieldDenied)
	own := value{kind: kindObject, inner: &composite{}}
	for _, m := range t.members() {
		switch m.name {
		case fieldMode, fieldAllowed, fieldDenied:
			own.inner.members = append(own.inner.members, m)
		}
	}
	if len(own.members()) > 0 {
		p.policy(l, name, own, path)
	}
}

// warnNear warns of keys that look like misspelt ones of ours: other people's
// keys are ignored, and a policy that is ignored is inherited or `public`.
func (p *parser) warnNear(v value, path string, ours ...string) {
	for _, m := range v.members() {
		plain := strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(m.name))
		near, found := nearest(strings.ToLower(m.name), ours)
		for _, o := range ours {
			if m.name == o {
				found = false
				break
			}
			if plain == strings.ReplaceAll(o, "_", "") {
				near, found = o, true
			}
		}
		if found {
			p.warn(at(path, m.name), "%s is ignored; if the network was meant, write %q", quote(m.name), near)
		}
	}
}

// merge is the layers of policy.md section 6.
type merge struct {
	layers    []layer             // by descending rank
	overrides map[string]Document // above all layers
	fresh     bool
}

// spelling of the result is that of the layer of the highest rank.
func (m *merge) spelling() spelling {
	if len(m.layers) == 0 {
		return spellingParams
	}
	return m.layers[0].spelling
}

// second says that the evaluation has a sandbox of its own.
func (m *merge) second() bool {
	if m.fresh {
		return true
	}
	return m.spelling() == spellingTask && m.makesSecond(phaseEvaluationBaseline)
}

func (m *merge) makesSecond(name string) bool {
	for _, l := range m.layers {
		if l.second[name] {
			return true
		}
	}
	return false
}

// overrideName is the shared name of an override's key; false when there is no
// such phase.
func (m *merge) overrideName(key string) (string, bool) {
	name := key
	if param, known := paramName(key); known {
		name = param
	} else if m.spelling() != spellingExeat {
		name = sharedName(key)
	}
	for _, legal := range m.names() {
		if m.spelling() == spellingTask {
			legal = sharedName(legal)
		}
		if legal == name {
			return name, true
		}
	}
	return name, false
}

// sharedName is the shared name of a phase of spelling 2.
func sharedName(name string) string {
	switch name {
	case "agent":
		return phaseRun
	case "verifier":
		return phaseEvaluation
	case "verifier.baseline":
		return phaseEvaluationBaseline
	}
	if rest, found := strings.CutPrefix(name, "step."); found {
		if step, isAgent := strings.CutSuffix(rest, ".agent"); isAgent {
			return stepPrefix(step) + phaseRun
		}
		if step, isVerifier := strings.CutSuffix(rest, ".verifier"); isVerifier {
			return stepPrefix(step) + phaseEvaluation
		}
	}
	return name
}

// names are the phases of the plan, as it prints them.
func (m *merge) names() []string {
	var names []string
	for _, p := range m.phases() {
		names = append(names, p.Name)
	}
	return names
}

// resolved is a policy and where it came from.
type resolved struct {
	policy Document
	source Source
}

// lookup is what is written for a phase: the override, then the layers.
func (m *merge) lookup(name string) (resolved, bool) {
	if d, found := m.overrides[name]; found {
		return resolved{d, SourceOverride}, true
	}
	return m.lookupLayers(name)
}

func (m *merge) lookupLayers(name string) (resolved, bool) {
	for _, l := range m.layers {
		if d, found := l.policies[name]; found {
			return resolved{d, l.source}, true
		}
	}
	return resolved{}, false
}

// or is what is written for a phase, else what it falls back to.
func (m *merge) or(name string, fallback resolved) resolved {
	if r, found := m.lookup(name); found {
		return r
	}
	return fallback
}

func inherited(r resolved) resolved { return resolved{r.policy, SourceInherited} }

// phases resolves the plan: defaults and inheritance, after merging.
func (m *merge) phases() []Phase {
	public := resolved{Document{Mode: ModePublic}, SourceDefault}
	baseline := m.or(phaseBaseline, public)
	if m.spelling() == spellingExeat {
		return m.exeatPhases(baseline)
	}
	names := [4]string{phaseBaseline, phaseRun, phaseEvaluation, phaseEvaluationBaseline}
	run, evaluation := public, public
	evaluationBaseline := m.evaluationBaseline(baseline, public)
	if m.spelling() == spellingTask {
		names = [4]string{phaseBaseline, "agent", "verifier", "verifier.baseline"}
		run, evaluation = inherited(baseline), inherited(baseline)
		if m.second() {
			evaluation = inherited(evaluationBaseline)
		}
	}
	run, evaluation = m.or(phaseRun, run), m.or(phaseEvaluation, evaluation)
	phases := []Phase{phase(names[0], baseline), phase(names[1], run)}
	last := phase(names[2], evaluation)
	switch {
	case !m.second():
		phases = append(phases, last)
	case m.spelling() == spellingTask:
		phases = append(phases, phase(names[3], evaluationBaseline), last)
	default:
		phases = append(phases, last, phase(names[3], evaluationBaseline))
	}
	return append(phases, m.stepPhases(baseline, evaluationBaseline)...)
}

func phase(name string, r resolved) Phase {
	return Phase{Name: name, Policy: r.policy, Source: r.source}
}

// evaluationBaseline is: its own override, else the override of the common
// baseline, else the task's, else the recipe's, else (where an empty table made
// the sandbox) public, else the agent's baseline.
func (m *merge) evaluationBaseline(baseline, public resolved) resolved {
	if d, found := m.overrides[phaseEvaluationBaseline]; found {
		return resolved{d, SourceOverride}
	}
	if d, found := m.overrides[phaseBaseline]; found {
		return resolved{d, SourceOverride}
	}
	if r, found := m.lookupLayers(phaseEvaluationBaseline); found {
		return r
	}
	if m.makesSecond(phaseEvaluationBaseline) {
		return public
	}
	return inherited(baseline)
}

// exeatPhases is the plan in spelling 1: a phase that is left out is the baseline.
func (m *merge) exeatPhases(baseline resolved) []Phase {
	phases := []Phase{phase(phaseBaseline, baseline)}
	seen := map[string]bool{phaseBaseline: true}
	for _, l := range m.layers {
		names := append([]string(nil), l.order...)
		if l.spelling != spellingExeat {
			names = append(names, phaseRun, phaseEvaluation)
			if m.fresh {
				names = append(names, phaseEvaluationBaseline)
			}
		}
		for _, name := range names {
			if !seen[name] {
				seen[name] = true
				phases = append(phases, phase(name, m.or(name, inherited(baseline))))
			}
		}
	}
	return phases
}

// stepPhases are the phases of the steps of all layers. A step's table falls back
// to the top-level table of that name, then to its sandbox's baseline, which a
// step may have of its own.
func (m *merge) stepPhases(baseline, evaluationBaseline resolved) []Phase {
	var phases []Phase
	seen := map[string]bool{}
	for _, l := range m.layers {
		for _, step := range l.steps {
			if seen[step] {
				continue
			}
			seen[step] = true
			prefix := stepPrefix(step)
			own := m.or(prefix+phaseBaseline, baseline)
			verifiers := own
			switch r, found := m.lookup(prefix + phaseEvaluationBaseline); {
			case found:
				verifiers = r
			case m.makesSecond(prefix + phaseEvaluationBaseline):
				verifiers = resolved{Document{Mode: ModePublic}, SourceDefault}
			case m.second():
				verifiers = evaluationBaseline
			}
			agent := inherited(m.or(phaseRun, own))
			verifier := inherited(m.or(phaseEvaluation, verifiers))
			phases = append(phases,
				phase(fmt.Sprintf("step.%s.agent", step), m.or(prefix+phaseRun, agent)),
				phase(fmt.Sprintf("step.%s.verifier", step), m.or(prefix+phaseEvaluation, verifier)))
		}
	}
	return phases
}
