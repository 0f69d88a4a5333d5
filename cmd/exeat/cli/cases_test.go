//go:build !image

package cli

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/exeat/exeat/policy"
)

const policyTestdata = "../../../policy/testdata"

// policyCase is one case of policy-cases.json, which says what its members mean.
type policyCase struct {
	Name      string              `json:"name"`
	Policy    json.RawMessage     `json:"policy"`
	Allow     []string            `json:"allow"`
	Deny      map[string]string   `json:"deny"`
	Rule      map[string]string   `json:"rule"`
	Canonical json.RawMessage     `json:"canonical"`
	Error     map[string][]string `json:"error"`
	Warn      map[string][]string `json:"warn"`
}

// TestSpecificationThroughTheBinary holds the worked examples of the
// specification against what a user runs.
func TestSpecificationThroughTheBinary(t *testing.T) {
	exeat := build(t)
	t.Run("cases", func(t *testing.T) { testCases(t, exeat) })
	t.Run("phases", func(t *testing.T) { testPhases(t, exeat) })
	t.Run("layers", func(t *testing.T) { testLayers(t, exeat) })
}

func testCases(t *testing.T, exeat string) {
	var file struct{ Cases []policyCase }
	readJSON(t, filepath.Join(policyTestdata, "policy-cases.json"), &file)
	if len(file.Cases) < 49 {
		t.Fatalf("%d cases, want those of the specification at least", len(file.Cases))
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			c.check(t, exeat)
			if len(c.Error) == 0 {
				c.explain(t, exeat)
			}
		})
	}
}

// check holds the case against `policy check`.
func (c policyCase) check(t *testing.T, exeat string) {
	got := execute(t, exeat, string(c.Policy), "policy", "check", "-o", "json", "-")
	var report checkReport
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatalf("%v in %q (stderr %q)", err, got.stdout, got.stderr)
	}
	valid := len(c.Error) == 0
	if report.Valid != valid || got.status != map[bool]int{true: 0, false: 1}[valid] {
		t.Errorf("valid %v, exit status %d; want valid %v", report.Valid, got.status, valid)
	}
	comparePaths(t, "error", report.Errors, c.Error)
	if c.Warn != nil {
		comparePaths(t, "warning", report.Warnings, c.Warn)
	}
	if c.Canonical != nil {
		var raw struct{ Canonical any }
		var want any
		mustUnmarshal(t, []byte(got.stdout), &raw)
		mustUnmarshal(t, c.Canonical, &want)
		if !reflect.DeepEqual(raw.Canonical, want) {
			t.Errorf("canonical %v, want %v", raw.Canonical, want)
		}
	}
}

// comparePaths wants problems at exactly the paths given, with these words.
func comparePaths(t *testing.T, what string, got []policy.Problem, want map[string][]string) {
	t.Helper()
	paths := map[string]bool{}
	for _, p := range got {
		paths[p.Path] = true
		words, expected := want[p.Path]
		if !expected {
			t.Errorf("unexpected %s: %s", what, p)
		}
		for _, word := range words {
			if !strings.Contains(p.Message, word) {
				t.Errorf("%s %q lacks %q", what, p, word)
			}
		}
	}
	for path := range want {
		if !paths[path] {
			t.Errorf("no %s at %q", what, path)
		}
	}
}

// explain holds the case against `policy explain`, all targets in one call.
func (c policyCase) explain(t *testing.T, exeat string) {
	targets := slices.Clone(c.Allow)
	targets = slices.AppendSeq(targets, maps.Keys(c.Deny))
	targets = slices.AppendSeq(targets, maps.Keys(c.Rule))
	if len(targets) == 0 {
		return
	}
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, c.Policy, 0o600); err != nil {
		t.Fatal(err)
	}
	got := execute(t, exeat, "", append([]string{"policy", "explain", "-o", "json", "-f", file}, targets...)...)
	want := map[bool]int{true: 1, false: 0}[len(c.Deny) > 0]
	if got.status != want {
		t.Errorf("exit status %d, want %d (stderr %q)", got.status, want, got.stderr)
	}
	answered := 0
	lines := bufio.NewScanner(strings.NewReader(got.stdout))
	for ; lines.Scan(); answered++ {
		var e explanation
		mustUnmarshal(t, lines.Bytes(), &e)
		if reason, denied := c.Deny[e.Target]; denied {
			if e.Verdict != policy.Deny || string(e.Reason) != reason {
				t.Errorf("%s: %s %s, want deny %s", e.Target, e.Verdict, e.Reason, reason)
			}
		} else if e.Verdict != policy.Allow && slices.Contains(c.Allow, e.Target) {
			t.Errorf("%s: %s %s, want allow", e.Target, e.Verdict, e.Reason)
		}
		if rule, named := c.Rule[e.Target]; named && e.Rule != rule {
			t.Errorf("%s: rule %q, want %q", e.Target, e.Rule, rule)
		}
	}
	if answered != len(targets) {
		t.Errorf("%d lines for %d targets: %q", answered, len(targets), got.stdout)
	}
}

// testPhases holds the worked phases documents against `plan`.
func testPhases(t *testing.T, exeat string) {
	wants, err := filepath.Glob(filepath.Join(policyTestdata, "phases", "*.expected.json"))
	if err != nil || len(wants) < 4 {
		t.Fatalf("%d worked documents (%v), want those of the specification at least", len(wants), err)
	}
	for _, want := range wants {
		document := strings.TrimSuffix(want, ".expected.json")
		t.Run(filepath.Base(document), func(t *testing.T) {
			if _, err := os.Stat(document + ".toml"); err == nil {
				document += ".toml"
			} else {
				document += ".json"
			}
			got := execute(t, exeat, "", "plan", "-o", "json", document)
			if got.status != 0 {
				t.Fatalf("exit status %d: %s", got.status, got.stderr)
			}
			var gotPlan, wantPlan struct {
				Phases []struct {
					Name   string
					Policy any
				}
			}
			mustUnmarshal(t, []byte(got.stdout), &gotPlan)
			readJSON(t, want, &wantPlan)
			if !reflect.DeepEqual(gotPlan, wantPlan) {
				t.Errorf("phases %+v, want %+v", gotPlan, wantPlan)
			}
		})
	}
}

// testLayers is the table of the worked layers (layers.md).
func testLayers(t *testing.T, exeat string) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	task := write("task.json", `{"baseline_network_policy": "public", "run_network_policy": "no-network",
		"evaluation_network_policy": "no-network", "evaluation_baseline_network_policy": "no-network"}`)
	recipe := write("recipe.json", `{"run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}}`)
	const allowlist = `{"network_mode":"allowlist","allowed_hosts":["example.com"]}`

	for _, c := range []struct {
		name string
		args []string
		want []string // "PHASE MODE SOURCE"; empty for an error
	}{
		{
			"a task alone shares its sandbox with the evaluation",
			[]string{"--task", task},
			[]string{"baseline public task", "run no-network task", "evaluation no-network task"},
		},
		{
			"a fresh sandbox has a baseline of its own",
			[]string{"--task", task, "--fresh"},
			[]string{"baseline public task", "run no-network task", "evaluation no-network task", "evaluation.baseline no-network task"},
		},
		{
			"the override of the common baseline outranks the task's evaluation baseline",
			[]string{"--task", task, "--fresh", "--override", "baseline=" + allowlist},
			[]string{"baseline allowlist override", "run no-network task", "evaluation no-network task", "evaluation.baseline allowlist override"},
		},
		{
			"the key of spelling 3 names the same phase",
			[]string{"--task", task, "--fresh", "--override", "baseline_network_policy=" + allowlist},
			[]string{"baseline allowlist override", "run no-network task", "evaluation no-network task", "evaluation.baseline allowlist override"},
		},
		{
			"an override of the evaluation baseline needs a fresh sandbox",
			[]string{"--task", task, "--override", "evaluation.baseline=public"},
			nil,
		},
		{
			"so it does by its key",
			[]string{"--task", task, "--override", "evaluation_baseline_network_policy=public"},
			nil,
		},
		{
			"what a recipe leaves out is public by default",
			[]string{"--recipe", recipe},
			[]string{"baseline public default", "run allowlist recipe", "evaluation public default"},
		},
		{
			"a task outranks a recipe",
			[]string{"--task", task, "--recipe", recipe},
			[]string{"baseline public task", "run no-network task", "evaluation no-network task"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := execute(t, exeat, "", append([]string{"plan", "-o", "json"}, c.args...)...)
			if c.want == nil {
				if got.status != 1 || !strings.Contains(got.stderr, "--fresh") || got.stdout != "" {
					t.Errorf("exit status %d, stderr %q, stdout %q; want 1 and a word of --fresh", got.status, got.stderr, got.stdout)
				}
				return
			}
			var plan policy.Plan
			mustUnmarshal(t, []byte(got.stdout), &plan)
			var phases []string
			for _, p := range plan.Phases {
				phases = append(phases, p.Name+" "+string(p.Policy.Mode)+" "+string(p.Source))
			}
			if !slices.Equal(phases, c.want) {
				t.Errorf("phases %q, want %q (stderr %q)", phases, c.want, got.stderr)
			}
		})
	}
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mustUnmarshal(t, data, v)
}

func mustUnmarshal(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v in %q", err, data)
	}
}
