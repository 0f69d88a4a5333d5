//go:build linux

package containers

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"
)

func TestExeatInsideTheSidecar(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		name, box := e.up(t, "--phases", phases(t), "--phase", "setup")
		exeat := func(args ...string) result { return e.in(name, append([]string{"exeat"}, args...)...) }
		exeatWith := func(stdin string, args ...string) result {
			return e.inWith(stdin, name, append([]string{"exeat"}, args...)...)
		}
		exeat("status").want(t, 0, "joined", "phase", "setup")
		exeat("status", "-o", "json").want(t, 0, `"shape":"joined"`)
		exeat("version").want(t, 0, "linux/")
		exeat("capabilities").want(t, 0, "yes")
		exeat("completion", "bash").want(t, 0, "__start_exeat")
		exeat("policy", "get").want(t, 0, "pypi.test")
		exeat("policy", "explain", "pypi.test").want(t, 0, "allow")
		exeat("policy", "explain", "evil.test").want(t, 1, "unlisted")
		exeat("notice").want(t, 0, "- pypi.test")
		exeat("phase").want(t, 0, "* setup", "run")
		exeatWith(`{"baseline": "no-network"}`, "plan", "-").want(t, 0, "no-network")
		exeatWith(`"nonsense"`, "policy", "check", "-").want(t, 1)
		exeatWith(`"no-network"`, "policy", "diff", "@", "-").want(t, 0, "- pypi.test")

		t.Run("logs follow", func(t *testing.T) {
			ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
			defer stop()
			cmd := e.program(ctx, e.name, "exec", name, "exeat", "logs", "-f", "--verdict", "deny")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			e.in(box, "curl", "-sS", "-m", "20", "https://evil.test/")
			told := false
			for lines := bufio.NewScanner(out); !told && lines.Scan(); {
				told = strings.Contains(lines.Text(), "evil.test")
			}
			if !told {
				t.Error("the denial is not told")
			}
			stop()
			if err := cmd.Wait(); err == nil {
				t.Error("logs -f has ended by itself")
			}
		})
		t.Run("a swap", func(t *testing.T) {
			exeatWith(`{"network_mode": "allowlist", "allowed_hosts": ["api.test"]}`, "policy", "set", "-").want(t, 0, "in force")
			if e.reaches(box, "https://pypi.test/") || !e.reaches(box, "https://api.test/") {
				t.Error("it is not in force")
			}
			exeat("phase", "setup").want(t, 0, "phase setup")
			if !e.reaches(box, "https://pypi.test/") || e.reaches(box, "https://api.test/") {
				t.Error("the phase is not in force")
			}
		})
		exeat("flows").want(t, 0, "CHANNEL")
		exeat("learn").want(t, 0, "pypi.test", "api.test")
		exeat("probe").want(t, 0, "held")
		exeat("up", "x").want(t, 2, "up does not work inside a sidecar")
		exeat("status", name).want(t, 2, "unexpected argument")
		e.in(name, "exeatd", "healthcheck").want(t, 0)
	})
}

func TestWhoMayUseTheControlSocket(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		for who, c := range map[string]struct {
			flags            []string
			admitted, others []string
		}{
			"root alone":         {nil, []string{"0"}, []string{"4711:4711"}},
			"a user":             {[]string{"--control-uid", "4711"}, []string{"0", "4711:4711"}, []string{"4712:4711", "4712:4712"}},
			"a group":            {[]string{"--control-gid", "4800"}, []string{"0", "4712:4800"}, []string{"4711:4711"}},
			"a user and a group": {[]string{"--control-uid", "4711", "--control-gid", "4800"}, []string{"0", "4711:1", "4712:4800"}, []string{"4712:4711"}},
		} {
			t.Run(who, func(t *testing.T) {
				name := e.fresh(t)
				args := []string{"run", "--detach", "--name", name, "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only"}
				for _, capability := range []string{"NET_ADMIN", "SETUID", "SETGID", "SETPCAP", "NET_RAW", "CHOWN"} {
					args = append(args, "--cap-add", capability)
				}
				// The runtime directory is writable, as on a read-only root it must be.
				args = append(args, "--volume", "/run/exeat", "localhost/exeat", "--allow", "pypi.test", "--resolver", "203.0.113.53")
				e.do(t, append(args, c.flags...)...)
				as := func(user string) result { return e.try("exec", "--user", user, name, "exeat", "policy", "get") }
				eventually(t, func() bool { return as("0").status == 0 })
				e.in(name, "exeatd", "healthcheck").want(t, 0)
				for _, user := range c.admitted {
					as(user).want(t, 0, "pypi.test")
				}
				for _, user := range c.others {
					if r := as(user); r.status == 0 || strings.Contains(r.stdout, "pypi.test") {
						t.Errorf("%s is admitted: %s", user, r.stdout)
					}
				}
			})
		}
	})
}
