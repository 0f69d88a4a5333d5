//go:build linux

package e2e

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/lab"
)

// startBound is ten times what a start may add on a machine that does nothing else
// (50 ms): this one runs the whole suite.
const startBound = 500 * time.Millisecond

func TestAGuardedCommandStartsSoon(t *testing.T) {
	lab.NeedWorld(t)
	var guardedTimes, plainTimes []time.Duration
	for range 15 {
		r := guarded("--quiet").run(t, "true")
		r.want(t, 0)
		guardedTimes = append(guardedTimes, r.took)
		plainTimes = append(plainTimes, outcome(t, exec.Command("true")).took)
	}
	added := median(guardedTimes) - median(plainTimes)
	t.Logf("exeat run -- true takes %s more than true (medians of 15)", added.Round(100*time.Microsecond))
	if added > startBound {
		t.Errorf("exeat run adds %s, want at most %s", added, startBound)
	}
}

// BenchmarkRunTrue interleaves `exeat run -- true` with `true`.
func BenchmarkRunTrue(b *testing.B) {
	if world == nil {
		b.Fatal("no namespace to measure in")
	}
	var guardedTimes, plainTimes []time.Duration
	runtimeDir := b.TempDir()
	for b.Loop() {
		guardedTimes = append(guardedTimes, timeOf(b, runtimeDir, exec.Command(binary, "run", "--quiet", "--resolver", "203.0.113.53", "--", "true")))
		plainTimes = append(plainTimes, timeOf(b, runtimeDir, exec.Command("true")))
	}
	guardedTime, plain := median(guardedTimes), median(plainTimes)
	b.ReportMetric(float64(guardedTime-plain)/float64(time.Millisecond), "added-ms")
	b.ReportMetric(float64(guardedTime)/float64(plain), "ratio")
}

func timeOf(b *testing.B, runtimeDir string, cmd *exec.Cmd) time.Duration {
	b.Helper()
	cmd.Env = append(cmd.Environ(), "XDG_RUNTIME_DIR="+runtimeDir)
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return time.Since(began)
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}
