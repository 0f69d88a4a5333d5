//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/control/api"
)

const threePhases = `{"phases": {
	"setup": "public",
	"run": {"network_mode": "allowlist", "allowed_hosts": ["api.test:443"]},
	"evaluation": "no-network"}}`

func writeFor(t *testing.T, u user, name, text string) string {
	t.Helper()
	path := filepath.Join(directoryOf(t, u), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPhasesAreEnteredLeasedAndNeverWidenByThemselves(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded("--phases", writeFor(t, u, "phases.json", threePhases), "--phase", "setup").as(u).start(t)
		l.sh("curl -sS http://registry.test/").want(t, 0, "hello")
		l.ctl("phase", l.name).want(t, 0, "* setup", "  run", "  evaluation", "  baseline")
		l.ctl("phase", l.name, "run").want(t, 0, "phase run, generation 2")
		l.sh("curl -sS https://api.test/").want(t, 0, "hello from api.test")
		l.sh("curl -sS http://registry.test/").want(t, 6)
		l.ctl("phase", l.name, "nowhere").want(t, 1, "nowhere")
		l.ctl("phase", l.name, "evaluation").want(t, 0, "generation 3")
		l.sh("curl -sS https://api.test/").want(t, 6)
		wantDecisions(t, l.decided(), "allow mode http registry.test:80", "allow rule tls api.test:443 (api.test:443)",
			"deny unlisted dns registry.test", "deny mode dns api.test")
		for _, e := range l.events(t) {
			if e.Name == "api.test" && e.Verdict.String() == "deny" && e.Phase != "evaluation" {
				t.Errorf("event %+v: want it in phase evaluation", e)
			}
		}

		// A lease ends in what was named, by itself.
		l.ctl("phase", l.name, "setup", "--for", "1s", "--then", "run").want(t, 0, "lease ends")
		l.sh("curl -sS http://registry.test/").want(t, 0, "hello")
		eventually(t, func() string {
			if s := decode[api.Status](t, l.ctl("status", l.name, "-o", "json").stdout); s.Phase != "run" || s.Lease != nil {
				return "the lease did not end in phase run, it is " + s.Phase
			}
			return ""
		})
		l.sh("curl -sS http://registry.test/").want(t, 6)
		// And in no-network where nothing was.
		l.set(`"public"`, "--for", "300ms")
		time.Sleep(500 * time.Millisecond)
		l.sh("curl -sS http://registry.test/").want(t, 6)
		wantDecisions(t, l.decided(), "deny mode dns registry.test")
	})
}

func TestTheFirstPhaseIsTheBeginningAndAWrongOneIsRefused(t *testing.T) {
	phases := writeFor(t, users()[0], "phases.json", threePhases)
	s, log := guarded("--phases", phases, "--phase", "evaluation").logged(t)
	s.run(t, "curl", "-sS", "https://api.test/").want(t, 6)
	log.wantOnly(t, "deny mode dns api.test")
	guarded("--phases", phases, "--phase", "evaluatoin").run(t, "touch", scratch+"/started").want(t, 125, `did you mean evaluation?`)
	if _, err := os.Stat(scratch + "/started"); err == nil {
		t.Error("the command was started")
	}
}

func TestLogsAreFiltered(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded("--allow", "pypi.test").as(u).start(t)
		l.sh("curl -sS https://pypi.test/; curl -sS https://a.evil.test/; curl -sS http://203.0.113.66/").want(t, 0, "hello", "unlisted")
		for _, test := range []struct {
			flags []string
			want  []string
		}{
			{[]string{"--verdict", "allow"}, []string{"allow rule dns pypi.test (pypi.test)", "allow rule tls pypi.test:443 (pypi.test)"}},
			{[]string{"--verdict", "deny"}, []string{"deny unlisted dns a.evil.test", "deny unlisted http 203.0.113.66:80"}},
			{[]string{"--name", "*.evil.test"}, []string{"deny unlisted dns a.evil.test"}},
			{[]string{"--reason", "rule", "--kind", "decision", "--name", "pypi.test"}, []string{"allow rule dns pypi.test (pypi.test)", "allow rule tls pypi.test:443 (pypi.test)"}},
			{[]string{"--since", "1h", "--verdict", "deny", "--name", "a.evil.test"}, []string{"deny unlisted dns a.evil.test"}},
			{[]string{"--since", "2100-01-01T00:00:00Z"}, nil},
		} {
			got := l.decided(test.flags...)
			if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
				t.Errorf("logs %v:\n  %s\nwant\n  %s", test.flags, strings.Join(got, "\n  "), strings.Join(test.want, "\n  "))
			}
		}
		l.ctl("logs", l.name, "--verdict", "perhaps").want(t, 2, "--verdict")
		l.ctl("logs", l.name, "--verdict", "deny").want(t, 0, "deny", "a.evil.test", "unlisted")
	})
}

func TestFlowsAreListedAndCut(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		name, addr := fresh(t)
		l := guarded("--allow", name).as(u).start(t)
		l.tell(agent + " hold 1 https://" + name + "/endless?every=10ms")
		l.hears("live")
		flows := decode[[]api.Flow](t, l.ctl("flows", l.name, "-o", "json").stdout)
		if len(flows) != 1 || flows[0].Name != name || flows[0].Addr.String() != addr || flows[0].Port != 443 ||
			flows[0].Rule != name || flows[0].BytesIn == 0 || flows[0].BytesOut == 0 {
			t.Fatalf("flows %+v, want the one download with its bytes", flows)
		}
		l.ctl("flows", l.name).want(t, 0, name, addr+":443/tcp", "tls")
		l.ctl("flows", l.name, "--cut", "nothing").want(t, 1)
		l.ctl("flows", l.name, "--cut", flows[0].ID).want(t, 0)
		l.hears("https://" + name + "/endless?every=10ms 1× cut")
		if left := decode[[]api.Flow](t, l.ctl("flows", l.name, "-o", "json").stdout); len(left) != 0 {
			t.Errorf("flows %+v after the cut", left)
		}
	})
}

// TestWhatIsLearnedLetsTheSameAgentPass observes an agent in public and enforces
// what `learn` proposes: by name and port, and by address where nothing was named.
func TestWhatIsLearnedLetsTheSameAgentPass(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		work := "curl -sSf https://pypi.test/ && curl -sSf http://www.alias.test:8080/ && " + agent + " tcp ssh.test:22 && " +
			agent + " tcp 203.0.113.77:22 && curl -sSfk https://203.0.113.78/"
		l := guarded("--mode", "public").as(u).start(t)
		l.sh(work).want(t, 0, "hello from pypi.test", "hello from www.alias.test", "SSH-2.0")
		l.sh("getent hosts only-looked-up.test; true").want(t, 0)
		learned := l.ctl("learn", l.name)
		learned.want(t, 0, "pypi.test:443", "www.alias.test:8080", "ssh.test:22", `"203.0.113.77"`, `"203.0.113.78"`)
		for _, needless := range []string{"203.0.113.10", "203.0.113.15", "only-looked-up"} {
			if strings.Contains(learned.stdout, needless) {
				t.Errorf("learned %s: %s", needless, learned.stdout)
			}
		}
		l.end().want(t, 0)
		file := writeFor(t, u, "learned.json", learned.stdout)
		exeat(t, "policy", "check", file).want(t, 0)
		s, log := guarded("--policy", file).as(u).logged(t)
		s.sh(t, work).want(t, 0, "hello from pypi.test")
		log.wantOnly(t, "allow rule tls pypi.test:443 (pypi.test:443)", "allow rule opaque ssh.test:22")
		s.sh(t, "curl -sS https://evil.test/").want(t, 6)
	})
}
