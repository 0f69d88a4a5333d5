//go:build linux

package containers

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAnAttachedSandboxThatIsRestarted(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		box := e.fresh(t)
		e.knocker(t, box, box)
		eventually(t, func() bool { return knocks(box) > 0 }) // the knocking is seen, unguarded
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		watch := e.program(ctx, "exeat", "attach", box, "--allow", "pypi.test", "--watch", "-o", "json")
		watch.Cancel = func() error { return watch.Process.Signal(syscall.SIGTERM) }
		watch.WaitDelay = 10 * time.Second
		done := make(chan result, 1)
		go func() { done <- e.outcome(watch) }()
		guarded := func() (sidecar string, is bool) {
			r := e.try("inspect", "-f", "{{.Id}}", box+"-exeat")
			return strings.TrimSpace(r.stdout), r.status == 0 && e.exeat(t, "status", box).status == 0 && e.reaches(box, "https://pypi.test/")
		}
		silent := func(when string) {
			t.Helper()
			before := knocks(box)
			time.Sleep(500 * time.Millisecond)
			if n := knocks(box) - before; n != 0 {
				t.Errorf("%d connections got out %s", n, when)
			}
		}
		var sidecar string
		eventually(t, func() (is bool) { sidecar, is = guarded(); return is })
		silent("while it was guarded")
		for _, again := range []string{"first", "second"} {
			before, last := knocks(box), sidecar
			e.do(t, "restart", "--time", "0", box)
			eventually(t, func() (is bool) { sidecar, is = guarded(); return is && sidecar != last })
			silent("once it was guarded again after the " + again + " restart")
			t.Logf("%s restart: %d connections got out meanwhile", again, knocks(box)-before)
			e.exeat(t, "policy", "get", box).want(t, 0, "pypi.test")
		}
		stop()
		r := <-done
		if n := strings.Count(r.stdout, `"unprotected_ms":`); n != 2 {
			t.Errorf("the gap is told %d times, want twice:\n%s\n%s", n, r.stdout, r.stderr)
		}
		t.Log(r.stdout)
	})
}

// TestAPausedContainerIsAttachedTo: Podman does not list it among those that run.
func TestAPausedContainerIsAttachedTo(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		box := e.alone(t)
		e.do(t, "pause", box)
		e.exeat(t, "attach", box, "--allow", "pypi.test").want(t, 0, "is guarded")
		e.in(box, "curl", "-sS", "-m", "20", "https://pypi.test/").want(t, 0, "hello from pypi.test")
		e.do(t, "pause", box)
		e.exeat(t, "status", box).want(t, 0)
		e.do(t, "unpause", box)
	})
}
