//go:build linux

package containers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// networks are the engines' two kinds: the default bridge, and one of the user's
// own, where Docker's DNS is at 127.0.0.11 and Podman's at the gateway.
func networks(t *testing.T, e *engine, test func(t *testing.T, network []string)) {
	t.Run("default bridge", func(t *testing.T) { test(t, nil) })
	t.Run("user-defined network", func(t *testing.T) {
		network := "net" + serial()
		e.do(t, "network", "create", network)
		t.Cleanup(func() { e.try("network", "rm", network) })
		test(t, []string{"--network", network})
	})
}

func TestASandboxThatJoinsASidecar(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		networks(t, e, func(t *testing.T, network []string) {
			name, box := e.up(t, append(network, "--allow", "pypi.test", "--allow", "git.test")...)
			e.guarded(t, name, box)
		})
	})
}

func TestASidecarThatIsAttached(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		networks(t, e, func(t *testing.T, network []string) {
			box := e.alone(t, network...)
			if !e.reaches(box, "https://evil.test/") {
				t.Fatal("unguarded, it does not reach evil.test: what follows would prove nothing")
			}
			e.exeat(t, "attach", box, "--allow", "pypi.test", "--allow", "git.test").want(t, 0, "is guarded")
			e.guarded(t, box, box)
			e.exeat(t, "detach", box).want(t, 0, "reaches nothing")
			if e.reaches(box, "https://pypi.test/") {
				t.Error("detached, it still reaches what was allowed")
			}
		})
	})
}

// guarded checks a sandbox that may reach pypi.test and git.test alone, with the
// clients that people use.
func (e *engine) guarded(t *testing.T, name, box string) {
	t.Helper()
	e.in(box, "curl", "-sS", "-m", "20", "https://pypi.test/").want(t, 0, "hello from pypi.test")
	e.in(box, "python3", "-c", "import urllib.request as u; print(u.urlopen('https://pypi.test/').read())").want(t, 0, "hello from pypi.test")
	clone := "rm -rf /tmp/project; git clone -q https://%s/git/project.git /tmp/project && git -C /tmp/project log --format=%%s"
	e.in(box, "sh", "-c", fmt.Sprintf(clone, "git.test")).want(t, 0, "the first")
	e.in(box, "getent", "ahosts", "pypi.test").want(t, 0, "203.0.113.10")
	for _, url := range []string{"https://evil.test/", "http://evil.test/", "https://203.0.113.66/"} {
		r := e.in(box, "curl", "-sS", "-f", "-k", "-m", "20", url)
		if r.status == 0 || r.status == curlTimeout {
			t.Errorf("%s: status %d, want a refusal at once", url, r.status)
		}
	}
	if r := e.in(box, "timeout", "20", "sh", "-c", fmt.Sprintf(clone, "evil.test")); r.status != 128 || !strings.Contains(r.stderr, "evil.test") {
		t.Errorf("git clone of what is denied: status %d: %s", r.status, r.stderr)
	}
	r := e.in(box, "timeout", "20", "python3", "-c", "import urllib.request as u; u.urlopen('http://203.0.113.66/')")
	if r.status != 1 || !strings.Contains(r.stderr, "HTTP Error 403") {
		t.Errorf("python, of what is denied: status %d: %s", r.status, r.stderr)
	}
	if r := e.in(box, "getent", "hosts", "evil.test"); r.status == 0 {
		t.Errorf("evil.test resolves: %s", r.stdout)
	}
	logs := e.exeat(t, "logs", name, "-o", "json").want(t, 0)
	for _, want := range []struct{ verdict, target string }{{"allow", "pypi.test"}, {"deny", "evil.test"}, {"deny", "203.0.113.66"}} {
		if !logged(t, logs.stdout, want.verdict, want.target) {
			t.Errorf("no %s of %s in the log:\n%s", want.verdict, want.target, logs.stdout)
		}
	}
	e.exeat(t, "learn", name).want(t, 0, "pypi.test")
	e.exeat(t, "status", name).want(t, 0, "joined", "ready", "yes")
	e.exeat(t, "ps").want(t, 0, name)
	e.exeat(t, "notice", name).want(t, 0, "pypi.test")
	e.exeat(t, "policy", "explain", "-s", name, "evil.test").want(t, 1, "deny")
}

// logged looks for a decision in the JSON lines of a log.
func logged(t *testing.T, lines, verdict, target string) bool {
	t.Helper()
	for line := range strings.Lines(lines) {
		var event struct{ Kind, Verdict, Name, Addr string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if event.Kind == "decision" && event.Verdict == verdict && (event.Name == target || event.Addr == target) {
			return true
		}
	}
	return false
}

func TestRunImage(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		run := func(flags []string, command ...string) result {
			name := e.fresh(t)
			args := append([]string{"run", "--name", name, "--image", debian}, flags...)
			r := e.exeat(t, append(append(args, "--"), command...)...)
			if left := e.do(t, "ps", "--all", "--quiet", "--filter", "name=^"+name); left != "" {
				t.Errorf("containers are left: %s", left)
			}
			return r
		}
		run([]string{"--allow", "pypi.test"}, "curl", "-sS", "https://pypi.test/").want(t, 0, "hello from pypi.test")
		run(nil, "sh", "-c", "exit 7").want(t, 7)
		run(nil, "/no/such/program").want(t, 127)
		run(nil, "/etc/passwd").want(t, 126)
		run([]string{"--engine-arg=--privileged"}, "true").want(t, 125, "it is privileged")
		run([]string{"--engine-arg=--cap-add=SYS_ADMIN"}, "true").want(t, 125, "SYS_ADMIN")
		run([]string{"--engine-arg=--no-such-flag"}, "true").want(t, 125)
		r := run(nil, "sh", "-c", "grep Cap.nd /proc/self/status; grep NoNewPrivs /proc/self/status")
		r.want(t, 0, "NoNewPrivs:\t1")
	})
}
