package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAContainerThatItsEngineStartsAgainIsNotAttachedTo is bypass B42: what it came
// back into nobody would guard.
func TestAContainerThatItsEngineStartsAgainIsNotAttachedTo(t *testing.T) {
	for name, c := range map[string]struct {
		restart, engine string
		said            string
		changed, fails  bool
	}{
		"one that stays down":                    {"no", "exit 1", "", false, false},
		"one that is started again":              {"always", "exit 0", "update --restart=no c1", true, false},
		"one that is, where its engine says no":  {"on-failure", "exit 1", "update --restart=no c1", false, true},
		"one whose policy the engine kept quiet": {"", "exit 0", "update --restart=no c1", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			engine := filepath.Join(dir, "engine")
			script := "#!/bin/sh\necho \"$@\" >>" + dir + "/said\n" + c.engine + "\n"
			if err := os.WriteFile(engine, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			e := &Engine{name: "docker", path: engine}
			changed, err := e.StopRestarting(t.Context(), Container{ID: "c1", Restart: c.restart})
			if changed != c.changed || (err != nil) != c.fails {
				t.Errorf("changed %v, %v; want %v, an error %v", changed, err, c.changed, c.fails)
			}
			said, err := os.ReadFile(filepath.Join(dir, "said"))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(string(said)); got != c.said {
				t.Errorf("the engine was told %q, want %q", got, c.said)
			}
		})
	}
}
