//go:build linux && !image

package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exeat/exeat/probe"
)

// shellEngine is a container engine whose one container is a directory: a command
// there is a command here.
type shellEngine struct{ script string }

func (e shellEngine) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", append([]string{e.script}, args...)...)
}

func newShellEngine(t *testing.T) (e shellEngine, container string) {
	t.Helper()
	dir := t.TempDir()
	e.script = filepath.Join(dir, "engine")
	script := `set -eu
echo "$@" >>` + dir + `/said
case $1 in
cp) cp "$2" "` + dir + `/${3#*:/}" ;;
exec)
	shift
	[ "$1" = --user ] && shift 2
	shift
	path="` + dir + `/${1#/}"; shift
	exec "$path" "$@" ;;
esac
`
	if err := os.WriteFile(e.script, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return e, dir
}

func TestAContainerIsProbedByACopyThatIsRemovedAgain(t *testing.T) {
	engine, dir := newShellEngine(t)
	p := containerProbe{engine: engine, container: "box", binary: build(t)}
	// A case that sends nothing.
	report, err := p.run(t.Context(), probeFlags{cases: []string{"B36"}, safe: true, marker: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Cases) != 1 || report.Cases[0].ID != "B36" || report.Cases[0].Verdict != probe.Held {
		t.Errorf("report %+v", report)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("left: %v", entries)
	}
	said, err := os.ReadFile(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cp ", "exec box /.exeat-probe-", "--case B36", "--safe", "exec --user 0 box /.exeat-probe-"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("the engine was not told %q: %s", want, said)
		}
	}
}

func TestAProbeThatFailsInTheContainerIsNoReport(t *testing.T) {
	engine, dir := newShellEngine(t)
	p := containerProbe{engine: engine, container: "box", binary: build(t)}
	if _, err := p.run(t.Context(), probeFlags{cases: []string{"B99"}}); err == nil || !strings.Contains(err.Error(), "B99") {
		t.Errorf("error %v, want what the probe said", err)
	}
	if left, err := filepath.Glob(dir + "/.exeat-probe-*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	p.binary = "/nowhere"
	if _, err := p.run(t.Context(), probeFlags{}); err == nil || !strings.Contains(err.Error(), "copy the probe") {
		t.Errorf("error %v, want the copy's", err)
	}
}
