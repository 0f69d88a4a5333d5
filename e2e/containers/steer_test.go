//go:build linux

package containers

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// phases writes a document of two phases.
func phases(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "phases.json")
	document := `{"baseline": "no-network", "phases": {
		"setup": {"network_mode": "allowlist", "allowed_hosts": ["pypi.test", "files.test"]},
		"run":   {"network_mode": "allowlist", "allowed_hosts": ["api.test"]},
		"both":  {"network_mode": "allowlist", "allowed_hosts": ["api.test", "files.test"]}}}`
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestASwapCutsWhatItForbidsAndNothingElse(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		name, box := e.up(t, "--phases", phases(t), "--phase", "both")
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		ended := map[string]chan result{}
		for _, host := range []string{"api.test", "files.test"} {
			done := make(chan result, 1)
			ended[host] = done
			cmd := e.program(ctx, e.name, "exec", box, "curl", "-sS", "-o", "/tmp/"+host, "https://"+host+"/endless?every=20ms")
			go func() { done <- e.outcome(cmd) }()
			eventually(t, func() bool { return e.size(box, host) > 0 })
		}
		e.exeat(t, "phase", name, "run").want(t, 0, "phase run", "1 flows cut")
		select {
		case r := <-ended["files.test"]:
			if r.status == 0 {
				t.Error("the forbidden download ended well")
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the forbidden download goes on")
		}
		cut := e.size(box, "files.test")
		before := e.size(box, "api.test")
		eventually(t, func() bool { return e.size(box, "api.test") > before+32<<10 })
		if now := e.size(box, "files.test"); now != cut {
			t.Errorf("%d bytes more of the forbidden download", now-cut)
		}
		e.exeat(t, "flows", name).want(t, 0, "api.test")
		stop()
		<-ended["api.test"]
	})
}

// size is how much of a download is in the sandbox.
func (e *engine) size(box, file string) int64 {
	r := e.in(box, "stat", "-c", "%s", "/tmp/"+file)
	var n int64
	for _, c := range strings.TrimSpace(r.stdout) {
		n = n*10 + int64(c-'0')
	}
	return n
}

// eventually waits for something to come true.
func eventually(t *testing.T, true func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !true(); {
		if time.Now().After(deadline) {
			t.Fatal("it does not come true")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestExecEntersWhatFollowsWhateverHappens(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		name, box := e.up(t, "--phases", phases(t), "--phase", "run")
		during := []string{"exec", "--phase", "setup", "--then", "run", name, "--"}
		check := func(t *testing.T, phase string) {
			t.Helper()
			eventually(t, func() bool {
				return strings.Contains(e.exeat(t, "status", name, "-o", "json").stdout, `"phase":"`+phase+`"`)
			})
		}
		t.Run("success", func(t *testing.T) {
			e.exeat(t, append(during, "curl", "-sS", "https://pypi.test/")...).want(t, 0, "hello from pypi.test")
			check(t, "run")
			if e.reaches(box, "https://pypi.test/") {
				t.Error("what the phase allowed is still reached")
			}
		})
		t.Run("failure", func(t *testing.T) {
			e.exeat(t, append(during, "sh", "-c", "exit 9")...).want(t, 9)
			check(t, "run")
			if r := e.exeat(t, append(during, "/no/such/program")...); r.status != 126 && r.status != 127 {
				t.Errorf("status %d of a program that is not there", r.status) // engines differ
			}
			check(t, "run")
		})
		t.Run("a command that a signal ends", func(t *testing.T) {
			r := e.exeat(t, append(during, "sh", "-c", "kill -s KILL $$")...)
			r.want(t, 137)
			check(t, "run")
		})
		t.Run("a timeout", func(t *testing.T) {
			cmd := e.program(t.Context(), "timeout", "2", filepath.Join(scratch, "exeat"), "exec", "--phase", "setup", "--then", "run", name, "--", "sleep", "600")
			e.outcome(cmd).want(t, 124)
			check(t, "run")
		})
		t.Run("without --then it is no-network", func(t *testing.T) {
			e.exeat(t, "exec", "--phase", "setup", name, "--", "true").want(t, 0)
			e.exeat(t, "status", name).want(t, 0, "no-network")
		})
		t.Run("an unknown phase is refused and nothing is run", func(t *testing.T) {
			e.exeat(t, "exec", "--phase", "nope", name, "--", "touch", "/tmp/ran").want(t, 125, "no phase")
			e.in(box, "test", "!", "-e", "/tmp/ran").want(t, 0)
		})
		for _, end := range []struct {
			name   string
			signal syscall.Signal
			status int
		}{{"SIGINT", syscall.SIGINT, 130}, {"SIGTERM", syscall.SIGTERM, 143}, {"SIGKILL", syscall.SIGKILL, -1}} {
			t.Run(end.name, func(t *testing.T) {
				cmd := e.program(context.Background(), "exeat", "exec", "--phase", "setup", "--then", "run", "--lease", "3s", name, "--", "sleep", "600")
				wait := e.begin(cmd)
				check(t, "setup")
				time.Sleep(4 * time.Second) // longer than the lease, which is renewed
				check(t, "setup")
				if err := cmd.Process.Signal(end.signal); err != nil {
					t.Fatal(err)
				}
				if r := wait(); r.status != end.status {
					t.Errorf("status %d, want %d: %s", r.status, end.status, r.stderr)
				}
				check(t, "run")
			})
		}
	})
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		says  string
	}{
		{"NET_ADMIN", []string{"--cap-add", "NET_ADMIN"}, "--cap-drop NET_ADMIN"},
		{"SYS_ADMIN", []string{"--cap-add", "SYS_ADMIN"}, "--cap-drop SYS_ADMIN"},
		{"host network", []string{"--network", "host"}, "the host's network"},
		{"no network", []string{"--network", "none"}, "nothing to guard"},
		{"host PID namespace", []string{"--pid", "host"}, "shares the PID namespace"},
		{"engine's socket", []string{"--volume", usualSocket + ":/var/run/docker.sock"}, usualSocket + " is mounted at /var/run/docker.sock, through which it can start containers"},
		{"engine's socket in a directory", []string{"--volume", "/run:/host-run"}, "which holds /run/"},
		{"whole file system", []string{"--volume", "/:/host"}, "the host's whole file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, e *engine) {
				box := e.alone(t, c.flags...)
				e.exeat(t, "attach", box).want(t, 1, "refused", c.says)
				e.in(box, "true").want(t, 0) // it was not paused for good
			})
		})
	}
	t.Run("privileged", func(t *testing.T) {
		each(t, func(t *testing.T, e *engine) {
			const says = "it is privileged, so it can change the rules; start it without --privileged"
			box := e.fresh(t)
			r := e.try("run", "--detach", "--name", box, "--privileged", debian, "sleep", "1000")
			if strings.Contains(r.stderr, "unable to apply caps") {
				// This machine has not every capability to give. One is made and looked at, at least.
				t.Log("no privileged container can be started here: ", r.stderr)
				e.exeat(t, "run", "--name", box+"-agent", "--image", debian, "--engine-arg=--privileged", "--", "true").want(t, 125, says)
				return
			}
			r.want(t, 0)
			e.exeat(t, "attach", box).want(t, 1, "refused", says)
			e.in(box, "true").want(t, 0)
		})
	})
	t.Run("another's PID namespace", func(t *testing.T) {
		each(t, func(t *testing.T, e *engine) {
			box := e.alone(t, "--pid", "container:"+e.alone(t))
			e.exeat(t, "attach", box).want(t, 1, "refused", "shares the PID namespace")
			e.in(box, "true").want(t, 0)
		})
	})
	t.Run("all of it is named at once", func(t *testing.T) {
		each(t, func(t *testing.T, e *engine) {
			box := e.alone(t, "--cap-add", "NET_ADMIN", "--cap-add", "DAC_READ_SEARCH", "--pid", "host")
			e.exeat(t, "attach", box).want(t, 1, "--cap-drop NET_ADMIN", "--cap-drop DAC_READ_SEARCH", "shares the PID namespace")
		})
	})
	t.Run("--unsafe lets it pass, and status says so", func(t *testing.T) {
		each(t, func(t *testing.T, e *engine) {
			box := e.alone(t, "--cap-add", "NET_ADMIN")
			e.exeat(t, "attach", box, "--unsafe").want(t, 0, "let pass")
			e.exeat(t, "status", box).want(t, 0, "let pass by --unsafe", "NET_ADMIN")
		})
	})
	t.Run("one that joins later is named at each call", func(t *testing.T) {
		each(t, func(t *testing.T, e *engine) {
			name, _ := e.up(t)
			late := e.alone(t, "--network", "container:"+name, "--cap-add", "NET_ADMIN")
			e.exeat(t, "status", name).want(t, 0, "the guard can be undone", late, "NET_ADMIN")
		})
	})
	t.Run("a sidecar is not guarded, nor twice anything", func(t *testing.T) {
		docker.need(t)
		name, box := docker.up(t)
		docker.exeat(t, "attach", name).want(t, 2, "is a sidecar itself")
		docker.exeat(t, "attach", box).want(t, 2, "guarded already")
	})
}

func TestARestartPolicyIsTakenAway(t *testing.T) {
	docker.need(t)
	box := docker.alone(t, "--restart", "always")
	docker.exeat(t, "attach", box).want(t, 0, `was "always" and is "no" now`)
	if policy := docker.do(t, "inspect", "-f", "{{.HostConfig.RestartPolicy.Name}}", box); policy != "no" {
		t.Errorf("restart policy %q", policy)
	}
	podman.need(t)
	box = podman.alone(t, "--restart", "always")
	podman.exeat(t, "attach", box).want(t, 1, "--restart=no")
}

func TestDetachOpen(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		box := e.alone(t)
		e.exeat(t, "attach", box).want(t, 0)
		if e.reaches(box, "https://pypi.test/") {
			t.Error("without a policy it reaches pypi.test")
		}
		e.exeat(t, "detach", box, "--open").want(t, 0, "reaches everything")
		if !e.reaches(box, "https://evil.test/") {
			t.Error("opened, it does not reach evil.test")
		}
	})
}
