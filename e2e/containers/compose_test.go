//go:build linux

package containers

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/exeat/exeat/e2e/require"
)

// composing runs Docker Compose, the one at binary, on a project, which is taken down
// at the test's end.
func composing(t *testing.T, binary string, files ...string) func(env []string, args ...string) result {
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
		cmd := docker.program(ctx, binary, append(all, args...)...)
		cmd.Env = append(cmd.Env, env...)
		return docker.outcome(cmd)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs: %s", run(nil, "logs", "--tail", "30").stdout)
		}
		run(nil, "down", "--volumes", "--timeout", "0")
	})
	return run
}

// compose2 is the Compose that was built from its Go module.
func compose2() string { return filepath.Join(scratch, "docker-compose") }

// shop is a project of three services.
const shop = `services:
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

// guardedProject writes a project and what `exeat compose` makes of it, which the
// files that it gives are to be run from.
func guardedProject(t *testing.T, project string, flags ...string) (files []string) {
	t.Helper()
	dir := t.TempDir()
	file, guarded := filepath.Join(dir, "compose.yaml"), filepath.Join(dir, "guarded.yaml")
	if err := os.WriteFile(file, []byte(project), 0o600); err != nil {
		t.Fatal(err)
	}
	r := docker.exeat(t, append([]string{"compose", file}, flags...)...).want(t, 0)
	if err := os.WriteFile(guarded, []byte(r.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(flags, "--full") {
		return []string{guarded}
	}
	return []string{file, guarded}
}

func TestThreeServicesBehindOneSidecar(t *testing.T) {
	docker.need(t)
	for _, c := range []struct {
		name, binary, flag string
		up                 []string
	}{
		{"an override", compose2(), "--full=false", []string{"up", "--detach", "--wait"}},
		{"one whole file", compose2(), "--full", []string{"up", "--detach", "--wait"}},
		// Debian 12's and Ubuntu's is version 1.29, which knows neither !reset nor --wait.
		{"one whole file, for the distribution's Compose", require.Tool(t, "docker-compose"), "--full", []string{"up", "--detach"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			compose := composing(t, c.binary, guardedProject(t, shop, "--allow", "pypi.test", c.flag)...)
			t.Logf("%s", compose(nil, "version", "--short").stdout)
			compose(nil, c.up...).want(t, 0)
			const both = "curl -sS -m 5 https://pypi.test/; ! curl -sS -k -m 5 https://evil.test/"
			for _, service := range []string{"web", "db", "job"} {
				compose(nil, "exec", "-T", service, "sh", "-c", both).want(t, 0, "hello from pypi.test")
			}
			compose(nil, "exec", "-T", "job", "curl", "-sS", "-m", "20", "--retry", "20", "--retry-delay", "1", "--retry-connrefused", "http://db:5432/").
				want(t, 0, "Directory listing")
			published := strings.TrimSpace(compose(nil, "port", "exeat", "8000").stdout)
			eventually(t, func() bool { return servesADirectory("http://" + published + "/") })
			car := sidecarOf(compose, "exeat")
			docker.exeatWith(t, `"no-network"`, "policy", "set", car, "-").want(t, 0)
			if r := compose(nil, "exec", "-T", "job", "curl", "-sS", "-m", "20", "https://pypi.test/"); r.status == 0 {
				t.Error("after the swap pypi.test is still reached")
			}
		})
	}
}

// sidecarOf is the container of a sidecar's service, as exeat's commands take it.
func sidecarOf(compose func([]string, ...string) result, service string) string {
	return strings.TrimSpace(compose(nil, "ps", "--quiet", service).stdout)[:12]
}

// servesADirectory says whether Python's server answers there.
func servesADirectory(url string) bool {
	r := docker.outcome(docker.program(context.Background(), "curl", "-sS", "-m", "20", url))
	return r.status == 0 && strings.Contains(r.stdout, "Directory listing")
}

// TestASidecarForEachService: each has a namespace, phases and a policy of its own;
// they reach one another where that is listed. Two listen on one port, as they
// could not behind one sidecar.
func TestASidecarForEachService(t *testing.T) {
	docker.need(t)
	project := strings.ReplaceAll(shop, "5432", "8000")
	file := filepath.Join(t.TempDir(), "compose.yaml")
	if err := os.WriteFile(file, []byte(project), 0o600); err != nil {
		t.Fatal(err)
	}
	docker.exeat(t, "compose", file).want(t, 1, "both listen on 8000")
	document := `{"phases": {
		"setup": {"network_mode": "allowlist", "allowed_hosts": ["pypi.test", "db:8000"]},
		"run":   {"network_mode": "allowlist", "allowed_hosts": ["api.test"]}}}`
	phases := filepath.Join(t.TempDir(), "phases.json")
	if err := os.WriteFile(phases, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	compose := composing(t, compose2(), guardedProject(t, project, "--per-service", "--phases", phases, "--phase", "setup")...)
	compose(nil, "up", "--detach", "--wait").want(t, 0)
	reaches := func(service, url string) bool {
		r := compose(nil, "exec", "-T", service, "curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", url)
		return r.status == 0 && r.stdout == "200"
	}
	check := func(t *testing.T, service string, want map[string]bool) {
		t.Helper()
		for url, may := range want {
			if reaches(service, url) != may {
				t.Errorf("%s reaches %s: %v, want %v", service, url, !may, may)
			}
		}
	}
	eventually(t, func() bool {
		return reaches("db", "http://127.0.0.1:8000/") && reaches("web", "http://127.0.0.1:8000/")
	})
	setup := map[string]bool{"https://pypi.test/": true, "http://db:8000/": true, "https://api.test/": false, "http://web:8000/": false}
	for _, service := range []string{"web", "job"} {
		check(t, service, setup)
	}
	if published := strings.TrimSpace(compose(nil, "port", "web-exeat", "8000").stdout); !servesADirectory("http://" + published + "/") {
		t.Errorf("the published port %s is not reached", published)
	}
	docker.exeat(t, "phase", sidecarOf(compose, "job-exeat"), "run").want(t, 0, "phase run")
	check(t, "job", map[string]bool{"https://pypi.test/": false, "http://db:8000/": false, "https://api.test/": true})
	check(t, "web", setup) // whose phase it was not
}
