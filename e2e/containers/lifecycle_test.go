//go:build linux

package containers

import (
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
