package policy

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The worked cases of the specification.
type specCase struct {
	Name      string
	Policy    json.RawMessage
	Allow     []string
	Deny      map[string]Reason
	Rule      map[string]string
	Canonical json.RawMessage
	Error     map[string][]string
	Warn      map[string][]string
}

func TestWorkedCases(t *testing.T) {
	data, err := os.ReadFile("testdata/policy-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []specCase }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 40 {
		t.Fatalf("%d cases: the file was cut", len(file.Cases))
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) { c.run(t) })
	}
}

func (c specCase) run(t *testing.T) {
	d, warnings, err := Parse(c.Policy)
	if c.Error != nil {
		problems, ok := err.(Errors)
		if !ok {
			t.Fatalf("legal, or not an Errors: %v", err)
		}
		wantProblems(t, c.Error, problems)
		if len(problems) != len(c.Error) {
			t.Errorf("%d problems, want %d: %v", len(problems), len(c.Error), problems)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	wantProblems(t, c.Warn, warnings)
	compiled := Compile(d, Options{Generation: 7})
	for _, target := range c.Allow {
		if got := compiled.Decide(mustAsk(t, target)); got.Verdict != Allow || got.Generation != 7 {
			t.Errorf("%s: %+v, want allow", target, got)
		}
	}
	for target, reason := range c.Deny {
		if got := compiled.Decide(mustAsk(t, target)); got.Verdict != Deny || got.Reason != reason {
			t.Errorf("%s: %+v, want deny %s", target, got, reason)
		}
	}
	for target, rule := range c.Rule {
		if got := compiled.Decide(mustAsk(t, target)); got.Verdict != Allow || got.Rule != rule {
			t.Errorf("%s: %+v, want rule %s", target, got, rule)
		}
	}
	if c.Canonical != nil {
		var want bytes.Buffer
		if err := json.Compact(&want, c.Canonical); err != nil {
			t.Fatal(err)
		}
		if got := mustJSON(t, d); got != want.String() {
			t.Errorf("canonical\n got %s\nwant %s", got, want.String())
		}
	}
}

// wantProblems holds each wanted path to a problem whose message has the words.
func wantProblems(t *testing.T, want map[string][]string, got []Problem) {
	t.Helper()
	for path, words := range want {
		found := false
		for _, p := range got {
			if p.Path != path {
				continue
			}
			found = true
			for _, word := range words {
				if !strings.Contains(p.Message, word) {
					t.Errorf("%s: %q lacks %q", path, p.Message, word)
				}
			}
		}
		if !found {
			t.Errorf("nothing at %q; got %v", path, got)
		}
	}
}

func mustAsk(t *testing.T, target string) Request {
	t.Helper()
	r, err := ParseAskTarget(target)
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return r
}

func mustParse(t testing.TB, document string) Document {
	t.Helper()
	d, _, err := Parse([]byte(document))
	if err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return d
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
