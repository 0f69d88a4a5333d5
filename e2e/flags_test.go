//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/lab"
)

func TestAPinnedNameNeedsNoServerAndMayBeLoopback(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		s, log := guarded("--allow", "pinned.test", "--allow", "here.test",
			"--add-host", "pinned.test=203.0.113.12,2001:db8::12", "--add-host", "here.test=127.0.0.1").as(u).logged(t)
		s.sh(t, "curl -sS https://pinned.test/ && "+agent+" dns udp 192.0.2.53:53 pinned.test A && getent hosts here.test && grep pinned.test /etc/hosts").
			want(t, 0, "hello from pinned.test", "A 203.0.113.12", "127.0.0.1", "203.0.113.12 pinned.test")
		log.wantOnly(t, "allow rule tls pinned.test:443 (pinned.test)")
		for _, q := range world.Asked() {
			if q.Name == "pinned.test" || q.Name == "here.test" {
				t.Errorf("question %+v about a pinned name", q)
			}
		}
	})
}

func TestAPinDoesNotAllow(t *testing.T) {
	s, log := guarded("--allow", "pypi.test", "--add-host", "pinned.test=203.0.113.12").logged(t)
	s.run(t, "curl", "-sS", "http://pinned.test/").want(t, 0, "pinned.test:80 denied: unlisted")
	log.wantOnly(t, "deny unlisted http pinned.test:80")
}

func TestAnUpstreamProxyIsAskedForTheCheckedAddress(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		name, addr := fresh(t)
		s, log := guarded("--allow", name, "--upstream-proxy", "http://203.0.113.31:3128").as(u).logged(t)
		s.sh(t, "curl -sS https://"+name+"/ && curl -sS http://"+name+"/ && "+agent+" tcp "+name+":22; curl -sS http://evil.test/").
			want(t, 6, "hello from "+name, "SSH-2.0")
		log.wantOnly(t, "allow rule tls "+name+":443", "allow rule http "+name+":80", "allow rule opaque "+name+":22", "deny unlisted dns evil.test")
		tunnels := map[string]bool{}
		for _, v := range world.Seen() {
			if v.Path == internet.ConnectPath && strings.HasPrefix(v.To, "203.0.113.31:") {
				tunnels[v.Host] = true
			}
		}
		for _, want := range []string{addr + ":443", addr + ":80", addr + ":22"} {
			if !tunnels[want] {
				t.Errorf("the proxy was not asked for %s: %v", want, tunnels)
			}
		}
		for tunnel := range tunnels {
			if strings.Contains(tunnel, "evil") || strings.Contains(tunnel, ".66") {
				t.Errorf("the proxy was asked for %s", tunnel)
			}
		}
	})
}

// TestTheFloorHoldsInEveryMode, and no swap lifts it.
func TestTheFloorHoldsInEveryMode(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded("--mode", "public", "--floor", "evil.test", "--floor", "203.0.113.99").as(u).start(t)
		l.sh("curl -sS http://pypi.test/; curl -sS https://evil.test/; curl -sS http://203.0.113.99:8080/").want(t, 0, "hello from pypi.test", "203.0.113.99:8080 denied: denied")
		wantDecisions(t, l.decided(), "allow mode http pypi.test:80", "deny denied dns evil.test (floor:evil.test)")
		l.set(`{"network_mode":"allowlist","allowed_hosts":["evil.test","203.0.113.99","api.test"]}`)
		l.sh("curl -sS https://api.test/; curl -sS --resolve evil.test:443:203.0.113.66 https://evil.test/").want(t, 35, "hello from api.test")
		l.sh(agent+" tcp 203.0.113.99:22").want(t, 1, "re")
		wantDecisions(t, l.decided(), "deny denied tls evil.test:443 (floor:evil.test)")
		denied := false
		for _, d := range l.decided("--verdict", "deny") {
			denied = denied || strings.Contains(d, "203.0.113.99:22 (floor:203.0.113.99)") && strings.HasPrefix(d, "deny denied")
		}
		if !denied {
			t.Errorf("the floor's address was not denied: %q", l.decided())
		}
	})
}

// TestClientsThatAreToldOfAProxyUseIt: with --proxy-env, CONNECT and absolute
// URIs; the same verdicts and reasons.
func TestClientsThatAreToldOfAProxyUseIt(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		s, log := guarded("--allow", "pypi.test", "--proxy-env").as(u).logged(t)
		s.sh(t, "env | grep -i _proxy; curl -sS -v https://pypi.test/ 2>&1; curl -sS http://pypi.test/; "+agent+" get https://pypi.test/").
			want(t, 0, "HTTPS_PROXY=http://127.0.0.1:", "CONNECT pypi.test:443", "hello from pypi.test", "HTTP/2.0 200")
		log.wantOnly(t, "allow rule tls pypi.test:443 (pypi.test)", "allow rule http pypi.test:80 (pypi.test)")

		s, log = guarded("--allow", "pypi.test", "--proxy-env").as(u).logged(t)
		s.sh(t, "curl -sS -i http://evil.test/; curl -sS https://evil.test/").
			want(t, 56, "403 Forbidden", "Proxy-Status: exeat", "evil.test:80 denied: unlisted (decision ", "403")
		log.wantOnly(t, "deny unlisted http evil.test:80", "deny unlisted connect evil.test:443")
	})
}

func TestTheLogGoesWhereItIsSent(t *testing.T) {
	r := guarded("--allow", "pypi.test", "--quiet", "--log", "-").run(t, "curl", "-sS", "https://pypi.test/")
	r.want(t, 0)
	wantDecisions(t, decisionsOf(readEvents(t, []byte(r.stderr))), "allow rule dns pypi.test (pypi.test)", "allow rule tls pypi.test:443 (pypi.test)")

	s, log := guarded().logged(t)
	s.run(t, "true").want(t, 0)
	s.run(t, "curl", "-sS", "https://evil.test/").want(t, 6)
	events := log.events(t)
	if events[0].Kind != audit.KindSwap && events[0].Kind != audit.KindReady && events[0].Kind != audit.KindLifecycle {
		t.Errorf("the first event is %+v", events[0])
	}
	log.wantOnly(t, "deny unlisted dns evil.test")
	info, err := os.Stat(log.path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log: %v %v", info, err)
	}
	guarded("--log", "/nowhere/log").run(t, "true").want(t, 125, "/nowhere/log")
}

func TestTheSummaryCountsByTargetAndReason(t *testing.T) {
	r := guarded("--allow", "pypi.test").sh(t, "for i in 1 2 3; do curl -sS http://203.0.113.66/ >/dev/null; done; curl -sS https://pypi.test/")
	r.want(t, 0, "3 allowed, 3 denied", "deny   203.0.113.66:80  3×  unlisted", "allow  pypi.test:443    1×  rule")
	if r := guarded("--quiet").run(t, "true"); r.stderr != "" {
		t.Errorf("--quiet, and stderr is %q", r.stderr)
	}
	guarded().run(t, "true").want(t, 0, "nothing was asked of the network")
}

// TestWhereUserNamespacesAreForbiddenTheSettingAndTheRemedyAreNamed: in a user
// namespace whose own limit is none.
func TestWhereUserNamespacesAreForbiddenTheSettingAndTheRemedyAreNamed(t *testing.T) {
	lab.NeedWorld(t)
	mark := directoryOf(t, users()[0]) + "/started"
	line := "echo 0 > /proc/sys/user/max_user_namespaces && exec " + binary + " run --resolver 203.0.113.53 -- touch " + mark
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDirOf(t, users()[0]))
	cmd.Dir = scratch
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{21}, // CAP_SYS_ADMIN: an ordinary user's exec would lose it
	}
	outcome(t, cmd).want(t, 125, "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=")
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command was started")
	}
}
