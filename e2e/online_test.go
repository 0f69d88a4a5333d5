//go:build linux

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exeat/exeat/control/api"
)

// each runs a test as every user.
func each(t *testing.T, test func(t *testing.T, u user)) {
	t.Helper()
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) { test(t, u) })
	}
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

func TestARunningSandboxIsListedAndTellsHowItStands(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded("--allow", "pypi.test").as(u).start(t)
		l.ctl("ps").want(t, 0, l.name, "sealed", "allowlist", "yes")
		type row struct {
			Name, Socket string
			Status       *api.Status
		}
		found := false
		for _, r := range decode[[]row](t, l.ctl("ps", "-o", "json").stdout) {
			found = found || r.Name == l.name && r.Socket == l.socket() && r.Status.Generation == 1
		}
		if !found {
			t.Error("ps -o json does not list the sandbox")
		}
		l.ctl("status", l.name).want(t, 0, "ready", "allowlist, generation 1")
		l.ctl("status", "--socket", l.socket()).want(t, 0, l.name)
		status := decode[api.Status](t, l.ctl("status", l.name, "-o", "json").stdout)
		if !status.Ready || status.Shape != "sealed" || status.Mode != "allowlist" || status.PID == 0 {
			t.Errorf("status %+v", status)
		}
		has := decode[map[string]*bool](t, l.ctl("capabilities", l.name, "-o", "json").stdout)
		if v := has["network_allowlist"]; v == nil || !*v {
			t.Errorf("capabilities %v: want network_allowlist", has)
		}
		for _, cannot := range []string{"target_udp", "icmp"} {
			if v := has[cannot]; v == nil || *v {
				t.Errorf("capability %s is not denied: the sealed shape can't hold it", cannot)
			}
		}
		l.ctl("notice", l.name).want(t, 0, "<network-restriction>", "- pypi.test")
		l.end().want(t, 0)
		l.ctl("status", l.name).want(t, 3, l.name)
		l.ctl("policy", "get", l.name).want(t, 3)
		l.ctl("logs", l.name).want(t, 3)
		if strings.Contains(l.ctl("ps").stdout, l.name) {
			t.Error("ps lists a sandbox that has ended")
		}
	})
}

func TestThePolicyIsReadExplainedComparedAndSwapped(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded("--allow", "pypi.test:443", "--floor", "metadata.test").as(u).start(t)
		l.ctl("policy", "get", l.name).want(t, 0, `"pypi.test:443"`)
		state := decode[api.PolicyState](t, l.ctl("policy", "get", l.name, "-o", "json").stdout)
		if state.Generation != 1 || len(state.Floor) != 1 || state.Floor[0] != "metadata.test" {
			t.Errorf("state %+v", state)
		}
		l.ctl("policy", "explain", "-s", l.name, "pypi.test").want(t, 0, "allow", "rule", "pypi.test:443")
		l.ctl("policy", "explain", "-s", l.name, "pypi.test:80").want(t, 1, "deny", "unlisted")
		l.ctl("policy", "explain", "-s", l.name, "metadata.test").want(t, 1, "deny", "denied", "floor:metadata.test")
		explained := decode[struct{ Verdict, Reason, Rule string }](t,
			l.ctl("policy", "explain", "-s", l.name, "-o", "json", "evil.test").stdout)
		if explained.Verdict != "deny" || explained.Reason != "unlisted" {
			t.Errorf("explained %+v", explained)
		}
		file := filepath.Join(directoryOf(t, u), "next.json")
		next := `{"network_mode":"allowlist","allowed_hosts":["api.test"]}`
		if err := os.WriteFile(file, []byte(next), 0o644); err != nil {
			t.Fatal(err)
		}
		diff := l.ctl("policy", "diff", "@"+l.name, file)
		diff.want(t, 0, "+ api.test", "- pypi.test:443")
		swapped := decode[api.SwapResult](t, l.ctl("policy", "set", l.name, file, "-o", "json").stdout)
		if swapped.Generation != 2 {
			t.Errorf("swapped %+v, want generation 2", swapped)
		}
		l.sh("curl -sS https://api.test/").want(t, 0, "hello from api.test")
		l.sh("curl -sS https://pypi.test/").want(t, 6)
		wantDecisions(t, l.decided(), "allow rule tls api.test:443 (api.test)", "deny unlisted dns pypi.test")

		// What is refused leaves the old policy, whole.
		for _, refused := range []struct{ document, word string }{
			{`{"network_mode":"allowlist","allowed_hosts":["api.test","a.*.test"]}`, "allowed_hosts[1]"},
			{`{"network_mode":"allowlist","allowed_hosts":[{"host":"api.test","port":53,"protocol":"udp"}]}`, "target_udp"},
			{`"open"`, "public"},
		} {
			l.ctlWith(refused.document, "policy", "set", l.name, "-").want(t, 1, refused.word)
		}
		l.ctlWith(`"public"`, "policy", "set", l.name, "-", "--if-generation", "1").want(t, 1, "generation")
		if state := decode[api.PolicyState](t, l.ctl("policy", "get", l.name, "-o", "json").stdout); state.Generation != 2 {
			t.Errorf("generation %d after refused swaps, want 2", state.Generation)
		}
		l.sh("curl -sS https://api.test/").want(t, 0, "hello from api.test")
	})
}
