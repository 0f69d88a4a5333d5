//go:build linux

package bypass

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/probe"
)

// The attacker's addresses in the little internet, whose name evil.test no policy
// of these tests allows.
const (
	evil4, evil6 = "203.0.113.66", "2001:db8::66"
	evilName     = "evil.test"
)

// user is who starts a sandbox.
type user struct {
	name  string
	id    uint32
	flags []string
}

// users are the one that the tests run as and, where that is root, an ordinary
// one and root that stays root too.
func users() []user {
	if os.Getuid() != 0 {
		return []user{{"the user", uint32(os.Getuid()), nil}}
	}
	return []user{{"root", 0, nil}, {"root that stays so", 0, []string{"--as-root"}}, {"an ordinary user", 65534, nil}}
}

// output is what a command printed and how it ended.
type output struct {
	stdout, stderr string
	status         int
}

// execute runs a command as a user, in a directory and environment of its own.
func execute(t *testing.T, u user, args ...string) output {
	t.Helper()
	// t.TempDir is too long for the address of a socket.
	dir, err := os.MkdirTemp(bin(), "u")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, int(u.id), int(u.id)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = bin()
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "HOME="+dir)
	if int(u.id) != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.id, Gid: u.id}}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v (%s)", args, err, stderr.String())
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// sealed runs a command in a sandbox.
func sealed(t *testing.T, u user, policy []string, command ...string) output {
	t.Helper()
	args := append([]string{exeat(), "run", "-q", "--resolver", "203.0.113.53"}, u.flags...)
	return execute(t, u, append(append(append(args, policy...), "--"), command...)...)
}

// probeLine is the probe's command line, aimed at the attacker's addresses.
func probeLine(marker string) []string {
	return []string{
		exeat(), "probe", "-o", "json", "--target", evil4, "--target", evil6, "--name", evilName,
		"--allowed", "pypi.test", "--marker", marker,
	}
}

func reportOf(t *testing.T, o output) probe.Report {
	t.Helper()
	var report probe.Report
	if err := json.Unmarshal([]byte(o.stdout), &report); err != nil {
		t.Fatalf("%v in %q (%s)", err, o.stdout, o.stderr)
	}
	return report
}

// mayStayOpen are cases that nothing inside can prove, and why that is so; the
// far side proves them (TestNothingReachesTheAttackersAddress).
var mayStayOpen = map[string]string{
	"B04 an SCTP socket":                                   "this kernel does not have it",
	"B50 an allowed Host at the attacker's address":        "nothing here tells",
	"B50 an allowed server name at the attacker's address": "nothing here tells",
	"B03 multipath TCP":                                    "",
	"B03 TCP Fast Open: data in the SYN":                   "",
	"B78 a keystroke forged on the terminal":               "no terminal",
}

// TestTheProbeInsideASealedSandbox: no case leaks, under any policy and as anybody,
// and all but a few are proven from inside.
func TestTheProbeInsideASealedSandbox(t *testing.T) {
	if !inWorld(t) {
		return
	}
	for _, u := range users() {
		for name, policy := range map[string][]string{
			"allowlist":  {"--allow", "pypi.test"},
			"no-network": {"--mode", "no-network"},
		} {
			t.Run(name+" as "+u.name, func(t *testing.T) {
				o := sealed(t, u, policy, probeLine("sealed")...)
				report := reportOf(t, o)
				if o.status != 0 {
					t.Errorf("exit status %d, want 0: %s", o.status, o.stderr)
				}
				for _, f := range report.Cases {
					why, excused := mayStayOpen[f.ID+" "+f.Attack]
					excused = excused || name == "no-network" && f.ID == "B51"
					if f.Verdict == probe.Leak && !otherTestsSocket(f) || f.Verdict == probe.NotProven && !(excused && strings.Contains(f.Why, why)) {
						t.Errorf("%s %s: %s: %s (%s)", f.ID, f.Attack, f.Verdict, f.Seen, f.Why)
					}
				}
				if len(report.Cases) != len(probe.Cases()) {
					t.Errorf("%d cases, want all %d", len(report.Cases), len(probe.Cases()))
				}
			})
		}
	}
}

// otherTestsSocket is a socket in /tmp that a test of another package bound
// after the sandbox was started: SECURITY.md says of B71 that such are open.
func otherTestsSocket(f probe.Finding) bool {
	return f.ID == "B71" && strings.HasPrefix(f.Seen, os.TempDir()+"/") && !strings.Contains(f.Seen, bin())
}

// TestTheProbeFindsWhatIsNotHeldBack: outside any sandbox, and under a policy that
// allows everything, the same cases get through, so that they prove something.
func TestTheProbeFindsWhatIsNotHeldBack(t *testing.T) {
	if !inWorld(t) {
		return
	}
	rows := []string{"B01", "B02", "B51", "B54", "B55", "B56", "B57", "B59", "B63"}
	line := probeLine("open")
	for _, id := range rows {
		line = append(line, "--case", id)
	}
	for name, o := range map[string]output{
		"outside":        execute(t, users()[0], line...),
		"in public mode": sealed(t, users()[0], []string{"--mode", "public"}, line...),
	} {
		if o.status != 1 {
			t.Errorf("%s: exit status %d, want 1 for leaks", name, o.status)
		}
		leaks := map[string]bool{}
		for _, f := range reportOf(t, o).Cases {
			leaks[f.ID] = leaks[f.ID] || f.Verdict == probe.Leak
		}
		for _, id := range rows {
			if !leaks[id] && id != "B63" && id != "B57" {
				t.Errorf("%s: no case of %s got through", name, id)
			}
		}
	}
	if !slices.ContainsFunc(world.Seen(), atEvil) {
		t.Error("the attacker's address was not reached")
	}
}

func atEvil(v internet.Visit) bool {
	return strings.HasPrefix(v.To, evil4+":") || strings.HasPrefix(v.To, "["+evil6+"]:") || v.Host == evilName
}

// TestNothingReachesTheAttackersAddress is the far side's view of the probe: no
// connection, no request and no question came.
func TestNothingReachesTheAttackersAddress(t *testing.T) {
	if !inWorld(t) {
		return
	}
	seen, asked := len(world.Seen()), len(world.Asked())
	for _, u := range users() {
		sealed(t, u, []string{"--allow", "pypi.test"}, probeLine("far")...)
	}
	theirs := false
	for _, v := range world.Seen()[seen:] {
		theirs = theirs || v.Host == "pypi.test" && (strings.HasPrefix(v.To, "203.0.113.10:") || strings.HasPrefix(v.To, "[2001:db8::10]:"))
		if atEvil(v) {
			t.Errorf("the attacker was reached: %+v", v)
		}
		if v.Host != "" && v.Host != "pypi.test" {
			t.Errorf("a request for another host arrived: %+v", v)
		}
	}
	if !theirs {
		t.Error("no request for the allowed name reached its own address: B50 and B51 prove nothing")
	}
	for _, q := range world.Asked()[asked:] {
		if q.Name != "pypi.test" {
			t.Errorf("a question left the sandbox: %+v", q)
		}
	}
}

// TestOnlyStrictTakesWhatIsNotProvenForAFailure, and the text says how many.
func TestOnlyStrictTakesWhatIsNotProvenForAFailure(t *testing.T) {
	if !inWorld(t) {
		return
	}
	// Without --allowed, these cannot be tried.
	for flag, want := range map[string]int{"--strict": 1, "--strict=false": 0} {
		o := sealed(t, users()[0], []string{"--allow", "pypi.test"}, exeat(), "probe", "--case", "B50", "--case", "B65", flag)
		if o.status != want || !strings.Contains(o.stdout, "1 held, 0 leaks, 2 not proven") || !strings.Contains(o.stdout, "no allowed name is known here") {
			t.Errorf("%s: exit status %d, want %d: %s", flag, o.status, want, o.stdout)
		}
	}
}

// TestTheEngineOfASealedSandboxStartsNoProbe: it says how to, and it does not
// look as if something had been found, or not found.
func TestTheEngineOfASealedSandboxStartsNoProbe(t *testing.T) {
	if !inWorld(t) {
		return
	}
	script := exeat() + " run -q --name probed -- sleep 60 & " +
		"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do " + exeat() + " status probed >/dev/null 2>&1 && break; sleep 0.2; done; " +
		exeat() + " probe probed; status=$?; kill %1; wait; exit $status"
	o := execute(t, users()[0], "/bin/bash", "-c", script)
	if o.status != 2 || o.stdout != "" || !strings.Contains(o.stderr, "exeat run -- exeat probe") {
		t.Errorf("%+v", o)
	}
}
