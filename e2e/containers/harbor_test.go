//go:build linux

package containers

import (
	"testing"
	"time"
)

func TestTheStandInForHarborsSidecar(t *testing.T) {
	const sidecar = "harbor-docker-egress-control-sidecar"
	compose := composing(t, compose2(), "../harbor/compose.yaml")
	reaches := func(host string) bool {
		r := compose(nil, "exec", "-T", "main", "curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "https://"+host+"/")
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
