package policy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The worked phases documents of the specification.
func TestPhasesDocuments(t *testing.T) {
	files, err := filepath.Glob("testdata/phases/*.expected.json")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	for _, expected := range files {
		base := strings.TrimSuffix(expected, ".expected.json")
		t.Run(filepath.Base(base), func(t *testing.T) {
			name := base + ".toml"
			data, err := os.ReadFile(name)
			if os.IsNotExist(err) {
				name = base + ".json"
				data, err = os.ReadFile(name)
			}
			if err != nil {
				t.Fatal(err)
			}
			plan, warnings, err := ReadPlan(PlanInput{File: &PhasesSource{Name: name, Data: data}})
			if err != nil || len(warnings) > 0 && base != "testdata/phases/params" {
				t.Fatal(err, warnings)
			}
			var want struct {
				Phases []struct {
					Name   string
					Policy any
				}
			}
			readJSON(t, expected, &want)
			got := want
			got.Phases = nil
			if err := json.Unmarshal([]byte(mustJSON(t, plan)), &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

func readJSON(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// planOf is a plan as text: "name=policy (source)", and the problems if any.
func planOf(in PlanInput) string {
	plan, _, err := ReadPlan(in)
	if err != nil {
		return "error: " + err.Error()
	}
	var lines []string
	for _, p := range plan.Phases {
		text := string(p.Policy.Mode)
		for _, target := range p.Policy.Allowed {
			text += " " + target.String()
		}
		lines = append(lines, p.Name+"="+text+" ("+string(p.Source)+")")
	}
	return strings.Join(lines, "; ")
}

func TestPlans(t *testing.T) {
	task := `{"baseline_network_policy": "public", "run_network_policy": "no-network", "evaluation_network_policy": "no-network", "evaluation_baseline_network_policy": "no-network"}`
	only := func(host string) Document {
		target, err := ParseTarget(host)
		if err != nil {
			t.Fatal(err)
		}
		return Document{Mode: ModeAllowlist, Allowed: []Target{target}}
	}
	file := func(name, text string) *PhasesSource { return &PhasesSource{Name: name, Data: []byte(text)} }
	override := func(key string, d Document) map[string]Document { return map[string]Document{key: d} }
	for _, c := range []struct {
		about string
		in    PlanInput
		want  string
	}{
		{
			"layers.md 1: without --fresh the evaluation shares the sandbox",
			PlanInput{Task: file("t.json", task)},
			"baseline=public (task); run=no-network (task); evaluation=no-network (task)",
		},
		{
			"layers.md 2: --fresh prints the evaluation's baseline",
			PlanInput{Task: file("t.json", task), Fresh: true},
			"baseline=public (task); run=no-network (task); evaluation=no-network (task); evaluation.baseline=no-network (task)",
		},
		{
			"layers.md 3: the override of the common baseline outranks the task's evaluation baseline",
			PlanInput{Task: file("t.json", task), Fresh: true, Overrides: override("baseline", only("a.test"))},
			"baseline=allowlist a.test (override); run=no-network (task); evaluation=no-network (task); evaluation.baseline=allowlist a.test (override)",
		},
		{
			"layers.md 3, by the key",
			PlanInput{Task: file("t.json", task), Fresh: true, Overrides: override("baseline_network_policy", only("a.test"))},
			"baseline=allowlist a.test (override); run=no-network (task); evaluation=no-network (task); evaluation.baseline=allowlist a.test (override)",
		},
		{
			"layers.md 4: an evaluation baseline needs --fresh",
			PlanInput{Task: file("t.json", task), Overrides: override("evaluation.baseline", Document{Mode: ModePublic})},
			"error: evaluation.baseline: the evaluation has a baseline of its own only in a second sandbox; add --fresh",
		},
		{
			"layers.md 4, by the key",
			PlanInput{Task: file("t.json", task), Overrides: override("evaluation_baseline_network_policy", Document{Mode: ModePublic})},
			"error: evaluation_baseline_network_policy: the evaluation has a baseline of its own only in a second sandbox; add --fresh",
		},
		{
			"layers.md 5: a recipe alone, the rest by default",
			PlanInput{Recipe: file("r.json", `{"run_network_policy": "no-network"}`)},
			"baseline=public (default); run=no-network (recipe); evaluation=public (default)",
		},
		{
			"the evaluation baseline's own override outranks that of the common one",
			PlanInput{Fresh: true, Overrides: map[string]Document{"baseline": only("a.test"), "evaluation.baseline": only("b.test")}},
			"baseline=allowlist a.test (override); run=public (default); evaluation=public (default); evaluation.baseline=allowlist b.test (override)",
		},
		{
			"a recipe's evaluation baseline ranks just after the task's",
			PlanInput{Task: file("t.json", `{"baseline_network_policy": "no-network"}`), Recipe: file("r.json", task), Fresh: true},
			"baseline=no-network (task); run=no-network (recipe); evaluation=no-network (recipe); evaluation.baseline=no-network (recipe)",
		},
		{
			"an evaluation baseline that nobody wrote is the baseline",
			PlanInput{Task: file("t.json", `{"baseline_network_policy": "no-network"}`), Fresh: true},
			"baseline=no-network (task); run=public (default); evaluation=public (default); evaluation.baseline=no-network (inherited)",
		},
		{
			"the task outranks the recipe, phase by phase",
			PlanInput{Task: file("t.json", `{"run_network_policy": "public"}`), Recipe: file("r.json", task)},
			"baseline=public (recipe); run=public (task); evaluation=no-network (recipe)",
		},
		{
			"spelling 1: what is left out is the baseline; order is kept",
			PlanInput{File: file("p.json", `{"baseline": "no-network", "phases": {"z": "public", "a": {"network_mode": "allowlist"}}}`)},
			"baseline=no-network (file); z=public (file); a=allowlist (file)",
		},
		{
			"spelling 1 in TOML keeps the order too",
			PlanInput{File: file("p.toml", "baseline = \"no-network\"\n[phases]\nz = \"public\"\n[phases.a]\nnetwork_mode = \"allowlist\"\nallowed_hosts = [\"a.test\"]\n")},
			"baseline=no-network (file); z=public (file); a=allowlist a.test (file)",
		},
		{
			"spelling 1 in TOML as inline tables",
			PlanInput{File: file("p.toml", "phases = { z = \"public\", a = { network_mode = \"no-network\" } }\n")},
			"baseline=public (default); z=public (file); a=no-network (file)",
		},
		{
			"a missing baseline is public",
			PlanInput{File: file("p.json", `{"phases": {"run": "no-network"}}`)},
			"baseline=public (default); run=no-network (file)",
		},
		{
			"a file without .json or .toml is known by its brace",
			PlanInput{File: file("-", ` {"phases": {"run": "no-network"}}`)},
			"baseline=public (default); run=no-network (file)",
		},
		{
			"an override of a phase of spelling 1",
			PlanInput{File: file("p.json", `{"phases": {"run": "public"}}`), Overrides: override("run", Document{Mode: ModeNoNetwork})},
			"baseline=public (default); run=no-network (override)",
		},
		{
			"an override of a phase that does not exist",
			PlanInput{File: file("p.json", `{"phases": {"run": "public"}}`), Overrides: override("rnu", Document{Mode: ModeNoNetwork})},
			`error: rnu: there is no phase "rnu" to override; there are baseline, run`,
		},
		{
			"one phase overridden by name and by key",
			PlanInput{Overrides: map[string]Document{"run": {Mode: ModeNoNetwork}, "run_network_policy": {Mode: ModePublic}}},
			"error: run_network_policy: the phase is overridden twice, by its name and by its key; keep one",
		},
		{
			"a task file without a table of ours is public",
			PlanInput{Task: file("t.toml", "version = \"1.0\"\n")},
			"baseline=public (default); agent=public (inherited); verifier=public (inherited)",
		},
		{
			"an override of the agent's phase in a task file",
			PlanInput{Task: file("t.toml", "[environment]\nnetwork_mode = \"public\"\n"), Overrides: override("agent", only("a.test"))},
			"baseline=public (task); agent=allowlist a.test (override); verifier=public (inherited)",
		},
		{
			"a verifier's own sandbox is public where its table is empty, and outranked by the common baseline's override",
			PlanInput{Task: file("t.toml", "[verifier.environment]\n"), Overrides: override("baseline", only("a.test"))},
			"baseline=allowlist a.test (override); agent=allowlist a.test (inherited); verifier.baseline=allowlist a.test (override); verifier=allowlist a.test (inherited)",
		},
		{
			"a task file and a recipe in spelling 3 name the same phases",
			PlanInput{Task: file("t.toml", "[environment]\nnetwork_mode = \"public\"\n"), Recipe: file("r.json", `{"run_network_policy": "no-network", "evaluation_network_policy": "no-network"}`)},
			"baseline=public (task); agent=no-network (recipe); verifier=no-network (recipe)",
		},
		{
			"a step falls back to the top-level table, then to its sandbox's baseline",
			PlanInput{Task: file("t.toml", `
[environment]
network_mode = "no-network"
[agent]
network_mode = "allowlist"
allowed_hosts = ["top.test"]
[[steps]]
name = "one"
[[steps]]
name = "two"
[steps.environment]
network_mode = "public"
[steps.verifier.environment]
`)},
			"baseline=no-network (task); agent=allowlist top.test (task); verifier=no-network (inherited); " +
				"step.one.agent=allowlist top.test (inherited); step.one.verifier=no-network (inherited); " +
				"step.two.agent=allowlist top.test (inherited); step.two.verifier=public (inherited)",
		},
		{
			"a list without network_mode is an error",
			PlanInput{File: file("t.toml", "[agent]\nallowed_hosts = [\"a.test\"]\n")},
			`error: agent.network_mode: network_mode is missing; it is "public", "no-network", "allowlist" or "denylist"; with allowed_hosts write "network_mode": "allowlist"`,
		},
		{
			"null is a wrong type in spelling 3 as well",
			PlanInput{File: file("p.json", `{"run_network_policy": null}`)},
			`error: run_network_policy: a policy is "public", "no-network" or an object with network_mode; this is null`,
		},
		{
			"a policy is not a phases document",
			PlanInput{File: file("p.toml", "network_mode = \"no-network\"\n")},
			`error: this is a policy, not a phases document; make it the baseline: {"baseline": POLICY}`,
		},
		{
			"two documents at fault say which is which",
			PlanInput{Task: file("t.json", `{"run_network_policy": "none"}`), Recipe: file("r.toml", "[agent]\nnetwork_mode = 1\n")},
			`error: run_network_policy: in t.json: "none" is not a network mode; a mode is "public", "no-network", "allowlist" or "denylist"; write "no-network"` + "\n" +
				`agent.network_mode: in r.toml: network_mode is a string, "public", "no-network", "allowlist" or "denylist"; this is 1`,
		},
		{
			"a misspelt policy of spelling 3 is not ignored",
			PlanInput{File: file("p.json", `{"baseline_network_policy": "no-network", "run_network_polcy": "no-network"}`)},
			`error: run_network_polcy: "run_network_polcy" is not a policy of this document, which has baseline_network_policy, run_network_policy, evaluation_network_policy, evaluation_baseline_network_policy; write "run_network_policy"`,
		},
		{
			"two steps of one name",
			PlanInput{File: file("t.toml", "[[steps]]\nname = \"a\"\n[[steps]]\nname = \"a\"\n")},
			`error: steps[1].name: two steps have the name "a"; their phases would be the same`,
		},
		{
			"nothing at all",
			PlanInput{},
			"error: there is nothing to plan: give a phases document, a task, a recipe or an override",
		},
	} {
		t.Run(c.about, func(t *testing.T) {
			if got := planOf(c.in); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestTaskFileWarnsOfNearMisses(t *testing.T) {
	_, warnings, err := ReadPlan(PlanInput{File: &PhasesSource{Name: "t.toml", Data: []byte("[agent]\nnetwork-mode = \"no-network\"\n[enviroment]\n")}})
	if err != nil {
		t.Fatal(err)
	}
	wantProblems(t, map[string][]string{"agent.network-mode": {"network_mode"}, "enviroment": {"environment"}}, warnings)
}

func TestTOMLPoliciesGoThroughTheSameValidation(t *testing.T) {
	_, _, err := ReadPlan(PlanInput{File: &PhasesSource{Name: "p.toml", Data: []byte(`
[phases.a]
network_mode = "allowlist"
allowed_hosts = ["203.0.113.7/24", { host = "a.test", port = 443.0 }, 1979-05-27, { host = "b.test", prot = "udp" }]
[phases.b]
network_mode = "none"
`)}})
	problems, ok := err.(Errors)
	if !ok {
		t.Fatal(err)
	}
	wantProblems(t, map[string][]string{
		"phases.a.allowed_hosts[0]":      {"203.0.113.0/24"},
		"phases.a.allowed_hosts[1].port": {"integer", "443"},
		"phases.a.allowed_hosts[2]":      {"1979-05-27"},
		"phases.a.allowed_hosts[3].prot": {"protocol"},
		"phases.b.network_mode":          {"no-network"},
	}, problems)
}
