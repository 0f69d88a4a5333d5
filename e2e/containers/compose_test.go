//go:build linux

package containers

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// composing runs Docker Compose on a project, which is taken down at the test's end.
func composing(t *testing.T, files ...string) func(env []string, args ...string) result {
	t.Helper()
	docker.need(t)
	project := "p" + serial()
	run := func(env []string, args ...string) result {
		ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
		defer cancel()
		all := []string{"--project-name", project}
		for _, f := range files {
			all = append(all, "--file", f)
		}
		cmd := docker.program(ctx, filepath.Join(scratch, "docker-compose"), append(all, args...)...)
		cmd.Env = append(cmd.Env, env...)
		return docker.outcome(cmd)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs: %s", run(nil, "logs", "--tail", "30").stdout)
		}
		run(nil, "down", "--volumes", "--timeout", "1")
	})
	return run
}

func TestThreeServicesBehindOneSidecar(t *testing.T) {
	docker.need(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "compose.yaml")
	project := `services:
  web:
    image: localhost/exeat-test/sandbox
    command: ["python3", "-m", "http.server", "8000"]
    ports: ["127.0.0.1::8000"]
    depends_on: [db]
  db:
    image: localhost/exeat-test/sandbox
    command: ["python3", "-m", "http.server", "5432"]
    expose: ["5432"]
  job:
    image: localhost/exeat-test/sandbox
    command: ["sleep", "1000"]
`
	for _, full := range []bool{false, true} {
		name := "override"
		flags := []string{"compose", file, "--allow", "pypi.test"}
		if full {
			name, flags = "full", append(flags, "--full")
		}
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(project), 0o600); err != nil {
				t.Fatal(err)
			}
			r := docker.exeat(t, flags...).want(t, 0)
			guarded := filepath.Join(dir, name+".yaml")
			if err := os.WriteFile(guarded, []byte(r.stdout), 0o600); err != nil {
				t.Fatal(err)
			}
			files := []string{file, guarded}
			if full {
				files = files[1:]
			}
			compose := composing(t, files...)
			compose(nil, "up", "--detach", "--wait").want(t, 0)
			for _, service := range []string{"web", "db", "job"} {
				compose(nil, "exec", "-T", service, "curl", "-sS", "-m", "5", "https://pypi.test/").want(t, 0, "hello from pypi.test")
				if r := compose(nil, "exec", "-T", service, "curl", "-sS", "-k", "-m", "5", "https://evil.test/"); r.status == 0 {
					t.Errorf("%s reaches evil.test", service)
				}
			}
			compose(nil, "exec", "-T", "job", "curl", "-sS", "-m", "5", "http://db:5432/").want(t, 0, "Directory listing")
			published := strings.TrimSpace(compose(nil, "port", "exeat", "8000").stdout)
			outside := docker.program(t.Context(), "curl", "-sS", "-m", "5", "http://"+published+"/")
			docker.outcome(outside).want(t, 0, "Directory listing")
			car := strings.TrimSpace(compose(nil, "ps", "--quiet", "exeat").stdout)
			docker.exeatWith(t, `"no-network"`, "policy", "set", car[:12], "-").want(t, 0)
			if r := compose(nil, "exec", "-T", "job", "curl", "-sS", "-m", "5", "https://pypi.test/"); r.status == 0 {
				t.Error("after the swap pypi.test is still reached")
			}
		})
	}
}

func TestTheStandInForHarborsSidecar(t *testing.T) {
	const sidecar = "harbor-docker-egress-control-sidecar"
	compose := composing(t, "../harbor/compose.yaml")
	reaches := func(host string) bool {
		r := compose(nil, "exec", "-T", "main", "curl", "-sS", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", "https://"+host+"/")
		return r.status == 0 && r.stdout == "200"
	}
	check := func(t *testing.T, want map[string]bool) {
		t.Helper()
		for host, may := range want {
			if reaches(host) != may {
				t.Errorf("reaches %s: %v, want %v", host, !may, may)
			}
		}
	}
	policy := func(args ...string) result {
		return compose(nil, append([]string{"exec", "-T", sidecar, "network-policy"}, args...)...)
	}
	t.Run("the first policy comes from the environment", func(t *testing.T) {
		env := []string{"EGRESS_CONTROL_INITIAL_NETWORK_MODE=allowlist", "EGRESS_CONTROL_INITIAL_ALLOWED_HOSTS=pypi.test  api.test"}
		compose(env, "up", "--detach", "--wait").want(t, 0)
		check(t, map[string]bool{"pypi.test": true, "api.test": true, "evil.test": false})
	})
	t.Run("the three commands, each in force when it returns", func(t *testing.T) {
		policy("allow-all").want(t, 0)
		check(t, map[string]bool{"pypi.test": true, "evil.test": true})
		policy("deny-all").want(t, 0)
		check(t, map[string]bool{"pypi.test": false, "evil.test": false})
		policy("allow", "files.test", "*.test").want(t, 0)
		check(t, map[string]bool{"files.test": true, "evil.test": true})
		policy("allow", "files.test").want(t, 0)
		check(t, map[string]bool{"files.test": true, "evil.test": false})
	})
	t.Run("an empty list after one that was not, with a flow open", func(t *testing.T) {
		done := make(chan result, 1)
		go func() {
			done <- compose(nil, "exec", "-T", "main", "curl", "-sS", "-o", "/tmp/open", "https://files.test/endless?every=20ms")
		}()
		eventually(t, func() bool { return compose(nil, "exec", "-T", "main", "test", "-s", "/tmp/open").status == 0 })
		policy("allow").want(t, 0)
		select {
		case r := <-done:
			if r.status == 0 {
				t.Error("the open flow ended well")
			}
		case <-time.After(10 * time.Second):
			t.Error("the open flow goes on")
		}
		check(t, map[string]bool{"files.test": false, "pypi.test": false})
	})
	t.Run("a wrong command is an error and changes nothing", func(t *testing.T) {
		policy("allow", "files.test").want(t, 0)
		policy("allow", "no such host").want(t, 1)
		policy("open").want(t, 2, "allow-all")
		policy().want(t, 2)
		check(t, map[string]bool{"files.test": true, "evil.test": false})
	})
	t.Run("the ready file is there", func(t *testing.T) {
		compose(nil, "exec", "-T", sidecar, "test", "-f", "/tmp/harbor-docker-egress-control-sidecar.ready").want(t, 0)
		compose(nil, "exec", "-T", sidecar, "sh", "-c", "[ -f /tmp/harbor-docker-egress-control-sidecar.ready ] || exit 1").want(t, 0)
	})
	t.Run("an unknown mode ends it with status 2 and a message", func(t *testing.T) {
		docker.try("run", "--rm", "--cap-add", "NET_ADMIN", "--env", "EGRESS_CONTROL_INITIAL_NETWORK_MODE=some", "localhost/exeat-harbor").
			want(t, 2, "want public, no-network or allowlist")
	})
}
