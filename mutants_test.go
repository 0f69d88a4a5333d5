package exeat_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/probe"
)

// withoutMutant are the rows of the catalogue that no patch of mutants/ takes a
// defence from, and why.
var withoutMutant = map[string]string{
	"B66": "a documented residual: without interception there is no defence to take away",
	"B77": "a documented residual: it is no matter of egress, and nothing stops it",
}

func TestEveryDefenceHasAMutant(t *testing.T) {
	patches, err := filepath.Glob("mutants/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("no patches: %v", err)
	}
	row := regexp.MustCompile(`B\d\d`)
	named := map[string]bool{}
	for _, path := range patches {
		head := mutantHead(t, path)
		rows := row.FindAllString(head["Rows"]+head["Promise"]+head["Breaks"], -1)
		for _, id := range rows {
			named[id] = true
		}
		if head["Breaks"] == "" || head["Promise"]+head["Rows"] == "" {
			t.Errorf("%s: want a line of what it Breaks, and the Promise or the Rows that this hurts", path)
		}
		if at := row.FindString(filepath.Base(path)); at != "" && !slices.Contains(rows, at) {
			t.Errorf("%s is called after a row that it does not name", path)
		}
		mutantTest(t, path, head["Test"])
	}
	for _, r := range probe.Rows() {
		switch why := withoutMutant[r.ID]; {
		case named[r.ID] && why != "":
			t.Errorf("%s has a mutant and an excuse for having none", r.ID)
		case !named[r.ID] && why == "":
			t.Errorf("%s: no mutant takes its defence away: %s", r.ID, r.Defence)
		}
	}
}

// TestEveryMutantApplies: a patch whose lines have changed since proves nothing.
func TestEveryMutantApplies(t *testing.T) {
	tool := require.Tool(t, "patch")
	patches, err := filepath.Glob("mutants/*.patch")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range patches {
		// As scripts/mutants applies them.
		cmd := exec.Command(tool, "-p1", "-s", "-F3", "--forward", "--dry-run", "--input", path)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}

// mutantHead reads the lines before the patch itself.
func mutantHead(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head := map[string]string{}
	text, _, _ := strings.Cut(string(data), "\ndiff ")
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			head[name] = value
		}
	}
	return head
}

// mutantTest wants the test that a patch names to be there.
func mutantTest(t *testing.T, path, spec string) {
	t.Helper()
	pkg, pattern, _ := strings.Cut(spec, " ")
	name, _, _ := strings.Cut(pattern, "/")
	name = strings.Trim(name, "^$")
	tests, err := filepath.Glob(filepath.Join(filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tests {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if name != "" && strings.Contains(string(data), "func "+name+"(") {
			return
		}
	}
	t.Errorf("%s: there is no test %q in %s", path, name, pkg)
}
