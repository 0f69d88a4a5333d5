//go:build linux

package containers

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"
)

// knocking is a command that never stops trying to get out, from the first moment
// of its container on: to an address that no test's policy allows, each test to
// a port path of its own.
func knocking(mark string) []string {
	return []string{"sh", "-c", "while :; do curl -s -m 1 -o /dev/null http://203.0.113.66/" + mark + "; done"}
}

// knocks counts what of it reached the far side.
func knocks(mark string) int {
	n := 0
	for _, v := range world.Seen() {
		if v.Path == "/"+mark {
			n++
		}
	}
	return n
}

// knocker starts a container that knocks.
func (e *engine) knocker(t *testing.T, name, mark string, flags ...string) {
	t.Helper()
	args := append([]string{"run", "--detach", "--name", name}, flags...)
	e.do(t, append(append(args, debian), knocking(mark)...)...)
}

func TestNoMomentIsOpenWhereTheSidecarOwnsTheNamespace(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		free := e.fresh(t)
		e.knocker(t, free, free)
		eventually(t, func() bool { return knocks(free) > 0 }) // the knocking is seen, unguarded
		e.remove(free)

		name := e.fresh(t)
		join := strings.Fields(e.exeat(t, "up", name, "--allow", "pypi.test").want(t, 0).stdout)
		box := name + "-box"
		e.knocker(t, box, name, join...)
		none := func(t *testing.T) {
			t.Helper()
			time.Sleep(time.Second)
			if n := knocks(name); n != 0 {
				t.Errorf("%d connections got out", n)
			}
		}
		t.Run("while all is well", none)
		t.Run("the sandbox restarts", func(t *testing.T) {
			e.do(t, "restart", "--time", "0", box)
			none(t)
			if !e.reaches(box, "https://pypi.test/") {
				t.Error("restarted, it does not reach what is allowed")
			}
		})
		t.Run("the sidecar is killed", func(t *testing.T) {
			e.do(t, "kill", "--signal", "KILL", name)
			none(t)
		})
		t.Run("the sidecar is started again", func(t *testing.T) {
			e.do(t, "start", name)
			eventually(t, func() bool { return e.exeat(t, "status", name).status == 0 })
			none(t)
			e.exeat(t, "policy", "get", name).want(t, 0, "pypi.test") // what was in force, from its state
		})
		t.Run("and the sandbox joins it anew", func(t *testing.T) {
			e.do(t, "restart", "--time", "0", box)
			none(t)
			if !e.reaches(box, "https://pypi.test/") {
				t.Error("it does not reach what is allowed")
			}
		})
	})
}

func TestAnEngineRestart(t *testing.T) {
	docker.need(t)
	name := docker.fresh(t)
	join := strings.Fields(docker.exeat(t, "up", name, "--allow", "pypi.test").want(t, 0).stdout)
	docker.knocker(t, name+"-box", name, join...)
	docker.stopDaemon(syscall.SIGTERM)
	if err := docker.launchDaemon(); err != nil {
		t.Fatal(err)
	}
	docker.do(t, "start", name)
	docker.do(t, "start", name+"-box")
	time.Sleep(time.Second)
	if n := knocks(name); n != 0 {
		t.Errorf("%d connections got out", n)
	}
	docker.exeat(t, "policy", "get", name).want(t, 0, "pypi.test")
}

func TestAnAttachedSandboxThatIsRestarted(t *testing.T) {
	podman.need(t)
	podman.exeat(t, "attach", "any", "--watch").want(t, 2, "Docker alone")
	docker.need(t)
	func(e *engine) {
		box := e.fresh(t)
		e.knocker(t, box, box)
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		watch := e.program(ctx, "exeat", "attach", box, "--allow", "pypi.test", "--watch", "-o", "json")
		watch.Cancel = func() error { return watch.Process.Signal(syscall.SIGTERM) }
		watch.WaitDelay = 10 * time.Second
		done := make(chan result, 1)
		go func() { done <- e.outcome(watch) }()
		eventually(t, func() bool { return e.reaches(box, "https://pypi.test/") && e.exeat(t, "status", box).status == 0 })
		guarded := knocks(box)
		time.Sleep(500 * time.Millisecond)
		if n := knocks(box) - guarded; n != 0 {
			t.Errorf("%d connections got out while it was guarded", n)
		}
		first := e.do(t, "inspect", "-f", "{{.Id}}", box+"-exeat")
		e.do(t, "restart", "--time", "0", box)
		eventually(t, func() bool {
			r := e.try("inspect", "-f", "{{.Id}}", box+"-exeat")
			return r.status == 0 && strings.TrimSpace(r.stdout) != first && e.exeat(t, "status", box).status == 0
		})
		gap := knocks(box) - guarded
		again := knocks(box)
		time.Sleep(500 * time.Millisecond)
		if n := knocks(box) - again; n != 0 {
			t.Errorf("%d connections got out once it was guarded again", n)
		}
		e.exeat(t, "policy", "get", box).want(t, 0, "pypi.test")
		stop()
		r := <-done
		if !strings.Contains(r.stdout, `"unprotected_ms":`) {
			t.Errorf("the gap is not told:\n%s\n%s", r.stdout, r.stderr)
		}
		t.Logf("unprotected: %d connections; %s", gap, r.stdout)
	}(docker)
}
