//go:build linux

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// The tests of this file are named for the promises of design.md section 1; those
// of promise 2 are in swap_test.go.

func TestPromise1WithoutAPolicyNothingGetsOut(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		before, asked := len(world.Seen()), len(world.Asked())
		s, log := guarded("--quiet").as(u).logged(t)
		s.sh(t, "curl -sS https://pypi.test/; curl -sS --connect-to pypi.test:443:203.0.113.10:443 https://pypi.test/; "+
			"curl -sS http://203.0.113.10/; "+agent+" tcp 203.0.113.10:22; "+agent+" udp 203.0.113.10:7; "+agent+" tcp '[2001:db8::10]:22'").want(t, 1)
		log.wantOnly(t, "deny unlisted dns pypi.test", "deny unlisted tls pypi.test:443", "deny unlisted http 203.0.113.10:80",
			"deny unlisted packet 203.0.113.10:22", "deny unlisted packet 203.0.113.10:7/udp", "deny unlisted packet [2001:db8::10]:22")
		if len(world.Seen()) != before || len(world.Asked()) != asked {
			t.Errorf("%d connections and %d questions got out", len(world.Seen())-before, len(world.Asked())-asked)
		}
	})
}

// TestPromise1NoMomentIsWeaker: an agent that tries to get out from its first
// instant to its last, over start, a swap that changes nothing for it, and end.
func TestPromise1NoMomentIsWeaker(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		_, addr := fresh(t)
		l := guarded("--allow", "pypi.test", "--quiet").as(u).start(t)
		l.tell("while :; do curl -s -m 1 http://" + addr + "/; curl -s -m 1 -k https://" + addr + "/; " + agent + " tcp " + addr + ":22; done > /dev/null 2>&1 &")
		for range 10 {
			l.set(`{"network_mode":"allowlist","allowed_hosts":["api.test"]}`)
			l.set(`"no-network"`)
			l.set(`{"network_mode":"denylist","denied_hosts":["` + addr + `"]}`)
		}
		l.end().want(t, 0)
		if n := arrivals(addr); n != 0 {
			t.Errorf("%d connections reached what was never allowed", n)
		}
		denied := sum(l.events(t), func(e audit.Event) bool { return e.Kind == audit.KindDecision && e.Addr.String() == addr })
		if denied == 0 {
			t.Error("the agent tried nothing: the case shows nothing")
		}
	})
}

// TestPromise1WhenTheEngineIsKilledNothingGetsOut: the world sees no connection
// after it, from an agent that survives as long as it can.
func TestPromise1WhenTheEngineIsKilledNothingGetsOut(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		name, addr := fresh(t)
		l := guarded("--allow", name, "--quiet").as(u).start(t)
		l.tell("trap '' TERM HUP; (setsid sh -c 'while :; do " + agent + " get http://" + name + "/; done' > /dev/null 2>&1) &")
		eventually(t, func() string {
			if arrivals(addr) == 0 {
				return "no connection yet"
			}
			return ""
		})
		inside := l.insiders(t)
		if err := l.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		l.end()
		at := arrivals(addr)
		eventually(t, func() string {
			if left := alive(inside); len(left) > 0 {
				return fmt.Sprint("left are ", left)
			}
			return ""
		})
		if n := arrivals(addr); n != at {
			t.Errorf("%d connections after the engine's death", n-at)
		}
	})
}

// decisionID is how a decision is quoted to clients.
var decisionID = regexp.MustCompile(`decision ([a-z0-9]+-[0-9]+)`)

// TestPromise3OneReasonOnEveryChannel: each channel tells what it can, at once, and
// the log has the same decision.
func TestPromise3OneReasonOnEveryChannel(t *testing.T) {
	for _, test := range []struct {
		channel, line string
		status        int
		words         []string
		log           string
		quotes        bool // the decision's id
	}{
		{"http", "curl -sS -i -H 'Host: evil.test' http://pypi.test/", 0, []string{"403 Forbidden", "Proxy-Status: exeat;", "evil.test:80 denied: unlisted"}, "deny unlisted http evil.test:80", true},
		{"http, a hole in the list", "curl -sS -i http://bad.pypi.test/", 6, nil, "deny denied dns bad.pypi.test (bad.pypi.test)", false},
		{"connect", "curl -sS -i -x $HTTP_PROXY https://evil.test/", 56, []string{"403 Forbidden", "Proxy-Status: exeat;"}, "deny unlisted connect evil.test:443", false},
		{"dns with EDNS", agent + " dns udp 192.0.2.53:53 evil.test A", 0, []string{"NXDOMAIN", "EDE 15", "unlisted"}, "deny unlisted dns evil.test", true},
		{"dns without EDNS", "getent ahostsv4 evil.test", 2, nil, "deny unlisted dns evil.test", false},
		{"tls, unlisted", agent + " hello pypi.test:443 evil.test", 1, []string{"unrecognized name"}, "deny unlisted tls evil.test:443", false},
		{"tls, denied", agent + " hello pypi.test:443 bad.pypi.test", 1, []string{"access denied"}, "deny denied tls bad.pypi.test:443 (bad.pypi.test)", false},
		{"opaque", "printf hello | " + agent + " raw txt.test:22", 1, []string{"refused"}, "deny unlisted packet", false},
		{"packet", agent + " udp 203.0.113.66:9999", 1, []string{"refused|not permitted|unreachable"}, "deny unlisted packet 203.0.113.66:9999/udp", false},
	} {
		each(t, func(t *testing.T, u user) {
			t.Run(test.channel, func(t *testing.T) {
				s, log := guarded("--allow", "pypi.test", "--allow", "*.pypi.test", "--deny", "bad.pypi.test", "--allow", "txt.test:443", "--proxy-env", "--quiet").as(u).logged(t)
				line := "P=$HTTP_PROXY; unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy; HTTP_PROXY=$P; " + test.line
				r := s.sh(t, line)
				r.want(t, test.status)
				for _, w := range test.words {
					if !containsOne(r.stdout+r.stderr, w) {
						t.Errorf("want %q: %s%s", w, r.stdout, r.stderr)
					}
				}
				if r.took > 10*time.Second {
					t.Errorf("it took %s: a denial is immediate", r.took)
				}
				log.wantOnly(t, test.log)
				quoted := decisionID.FindStringSubmatch(r.stdout)
				if !test.quotes {
					return
				}
				if quoted == nil {
					t.Fatalf("no decision id: %s", r.stdout)
				}
				same := slices.ContainsFunc(log.events(t), func(e audit.Event) bool {
					return e.DecisionID == quoted[1] && strings.HasPrefix(decision(e), test.log)
				})
				if !same {
					t.Errorf("the client was told of decision %s, the log has no such one", quoted[1])
				}
			})
		})
	}
}

// TestPromise3AFaultIsNoDenialAndADenialNoFault: what fails behind an allowed name
// is logged as an error; an upstream's own 403 is its own.
func TestPromise3AFaultIsNoDenialAndADenialNoFault(t *testing.T) {
	world.SetName("dead.test", "A 203.0.113.10")
	s, log := guarded("--allow", "dead.test", "--allow", "nowhere.test", "--quiet").logged(t)
	s.sh(t, "curl -sS -i http://dead.test:9/; "+agent+" tcp dead.test:9; curl -sS -i -H 'Host: nowhere.test' http://203.0.113.66/").
		want(t, 0, "502 Bad Gateway", "nowhere.test")
	errors := map[string]bool{}
	for _, e := range log.events(t) {
		if e.Kind == audit.KindDecision && e.Verdict != policy.Allow {
			t.Errorf("a fault was logged as %s", decision(e))
		}
		if e.Kind == audit.KindError {
			errors[e.Error] = true
		}
	}
	if !errors[audit.ErrorUnreachable] || !errors[audit.ErrorUnresolvable] {
		t.Errorf("errors %v, want unreachable and unresolvable", errors)
	}
}

// TestPromise4TheNameDecidesOnCheckedAddresses: whatever the client claims, what
// is dialled is our own resolution of the name that was judged.
func TestPromise4TheNameDecidesOnCheckedAddresses(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		name, addr := fresh(t)
		_, decoy := fresh(t)
		s, log := guarded("--allow", name).as(u).logged(t)
		s.sh(t, fmt.Sprintf("echo %[1]s %[2]s > hosts; curl -sS --resolve %[2]s:443:%[1]s https://%[2]s/ && curl -sS -H 'Host: %[2]s' http://%[1]s/ && %[3]s get -at %[1]s:443 https://%[2]s/ && %[3]s get -at %[1]s:80 http://%[2]s/",
			decoy, name, agent)).want(t, 0, "hello from "+name)
		log.wantOnly(t, "allow rule tls "+name+":443 ("+name+")", "allow rule http "+name+":80 ("+name+")")
		if arrivals(decoy) != 0 || arrivals(addr) < 4 {
			t.Errorf("%d connections reached the address that the client chose, %d the name's own", arrivals(decoy), arrivals(addr))
		}
	})
}

// TestPromise5NothingIsLost: a flood is folded, and the fold says how many; every
// distinct denial has a line; the summary is exact.
func TestPromise5NothingIsLost(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded("--allow", "pypi.test", "--quiet").as(u).start(t)
		l.sh(agent+" repeat 700 http://203.0.113.66/").want(t, 0, "map[403:700]")
		l.sh("for i in $(seq 40); do curl -s http://203.0.113.66/ -H \"Host: d$i.evil.test\" > /dev/null; done").want(t, 0)
		l.end().want(t, 0)
		events := l.events(t)
		repeats := func(e audit.Event) bool { return e.Kind == audit.KindDecision && e.Target() == "203.0.113.66:80" }
		if n := sum(events, repeats); n != 700 {
			t.Errorf("the log stands for %d of 700 denials", n)
		}
		if lines := len(slices.DeleteFunc(slices.Clone(events), func(e audit.Event) bool { return !repeats(e) })); lines > 20 {
			t.Errorf("%d lines for 700 repeats: want them folded", lines)
		}
		for i := range 40 {
			want := fmt.Sprintf("d%d.evil.test:80", i+1)
			if sum(events, func(e audit.Event) bool { return e.Target() == want && e.Reason == policy.ReasonUnlisted }) != 1 {
				t.Errorf("no line for %s", want)
			}
		}
	})
}

// TestPromise6AllowedTrafficIsNotTouched: headers in clear, half-closes, idle
// connections, both directions; the real 70 s, gibibytes and streams are in
// clients_test.go.
func TestPromise6AllowedTrafficIsNotTouched(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		s, log := guarded("--allow", "pypi.test", "--allow", "ssh.test:22", "--quiet").as(u).logged(t)
		s.sh(t, "curl -sS -H 'X-Odd: a;b=\"c\"' -H 'Accept-Encoding: br' -A agent http://pypi.test/echo-headers").
			want(t, 0, `X-Odd: a;b="c"`, "Accept-Encoding: br", "User-Agent: agent")
		s.sh(t, "(printf one; sleep 1; printf two) | "+agent+" raw pypi.test:7 half").want(t, 0, `"onetwo"`)
		s.sh(t, "{ printf 'GET / HTTP/1.1\\r\\nHost: pypi.test\\r\\n\\r\\n'; sleep 2; printf 'GET / HTTP/1.1\\r\\nHost: pypi.test\\r\\nConnection: close\\r\\n\\r\\n'; } | timeout 20 openssl s_client -quiet -connect pypi.test:443 -servername pypi.test 2>/dev/null | grep -c hello").
			want(t, 0, "2")
		log.wantOnly(t, "allow rule http pypi.test:80 (pypi.test)", "allow rule opaque pypi.test:7 (pypi.test)", "allow rule tls pypi.test:443 (pypi.test)")
		for _, e := range log.events(t) {
			if e.Kind == audit.KindFlow && (e.Verdict != policy.Allow || e.BytesIn == 0) {
				t.Errorf("flow %s ended %s %s with %d bytes in", e.Target(), e.Verdict, e.Reason, e.BytesIn)
			}
		}
	})
}
