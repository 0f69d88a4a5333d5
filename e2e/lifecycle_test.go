//go:build linux

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

func TestExitStatusesTellTheCommandsFromOurs(t *testing.T) {
	plain := scratch + "/plain"
	lab.NeedWorld(t)
	if err := os.WriteFile(plain, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		flags  []string
		cmd    []string
		status int
		word   string
	}{
		{"success", nil, []string{"true"}, 0, ""},
		{"1 is the command's own", nil, []string{"false"}, 1, ""},
		{"2 is the command's own", nil, []string{"sh", "-c", "exit 2"}, 2, ""},
		{"125 is the command's own, too", nil, []string{"sh", "-c", "exit 125"}, 125, ""},
		{"killed by a signal", nil, []string{"sh", "-c", "kill -KILL $$"}, 137, ""},
		{"ended by SIGTERM", nil, []string{"sh", "-c", "kill $$"}, 143, ""},
		{"not found", nil, []string{"no-such-command"}, 127, "no-such-command"},
		{"not executable", nil, []string{plain}, 126, plain},
		{"an illegal policy", []string{"--allow", "https://pypi.test"}, []string{"true"}, 125, `pypi.test`},
		{"an unknown flag", []string{"--alow", "pypi.test"}, []string{"true"}, 125, "--allow"},
		{"an illegal floor", []string{"--floor", "a.*.test"}, []string{"true"}, 125, "a.*.test"},
		{"a name that can't be one", []string{"--name", "../x"}, []string{"true"}, 125, "../x"},
	} {
		each(t, func(t *testing.T, u user) {
			t.Run(test.name, func(t *testing.T) {
				guarded(test.flags...).as(u).run(t, test.cmd...).want(t, test.status, test.word)
			})
		})
	}
}

// TestAPolicyThatCannotBeHeldWholeIsRefusedBeforeTheCommandStarts: UDP that is
// written out; what is merely implied is denied, with a warning.
func TestAPolicyThatCannotBeHeldWholeIsRefusedBeforeTheCommandStarts(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		mark := filepath.Join(directoryOf(t, u), "started")
		file := writeFor(t, u, "udp.json", `{"network_mode":"allowlist","allowed_hosts":[{"host":"203.0.113.7","port":53,"protocol":"udp"}]}`)
		guarded("--policy", file).as(u).run(t, "touch", mark).want(t, 125, "target_udp", "allowed_hosts[0]")
		if _, err := os.Stat(mark); err == nil {
			t.Error("the command was started")
		}
		s, log := guarded("--allow", "203.0.113.7").as(u).logged(t)
		r := s.sh(t, agent+" tcp 203.0.113.7:22; "+agent+" udp 203.0.113.7:7")
		r.want(t, 1, "warning", "UDP", "SSH-2.0")
		log.wantOnly(t, "allow rule opaque 203.0.113.7:22 (203.0.113.7)", "deny protocol packet 203.0.113.7:7/udp")
	})
}

func TestSignalsReachTheCommandAndItsStatusComesBack(t *testing.T) {
	for name, test := range map[string]struct {
		signal syscall.Signal
		status int
	}{"TERM": {syscall.SIGTERM, 7}, "HUP": {syscall.SIGHUP, 7}, "INT": {syscall.SIGINT, 7}} {
		each(t, func(t *testing.T, u user) {
			t.Run(name, func(t *testing.T) {
				if signal.Ignored(test.signal) {
					t.Logf("%v is ignored here, as under nohup(1), which exeat heeds", test.signal)
					return
				}
				l := guarded().as(u).start(t)
				l.tell(`trap 'echo caught; exit 7' ` + name + `; echo waiting; while :; do sleep 0.02; done`)
				l.hears("waiting")
				if err := l.cmd.Process.Signal(test.signal); err != nil {
					t.Fatal(err)
				}
				l.hears("caught")
				l.end().want(t, test.status)
				l.wantNothingLeft(t)
			})
		})
	}
}

// TestASignalThatTheCommandDoesNotCatchEndsAll gives 128+n.
func TestASignalThatTheCommandDoesNotCatchEndsAll(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded().as(u).start(t)
		l.tell(`setsid sleep 1000 & echo waiting; exec sleep 1000`)
		l.hears("waiting")
		eventually(t, func() string {
			if !slices.ContainsFunc(l.insiders(t), func(p process) bool { return strings.HasPrefix(p.command, "sleep") }) {
				return "no sleep"
			}
			return ""
		})
		time.Sleep(50 * time.Millisecond) // for the exec
		if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		l.end().want(t, 143)
		l.wantNothingLeft(t)
	})
}

// TestKillingTheEngineLeavesNothing: no process, so no namespace with a way out;
// no socket; no file but the log.
func TestKillingTheEngineLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		name, addr := fresh(t)
		tmp := directoryOf(t, u)
		before := filesOf(t, u, tmp)
		s := guarded("--allow", name).as(u)
		s.env = []string{"TMPDIR=" + tmp}
		l := s.start(t)
		l.tell("setsid sleep 1000 & (trap '' TERM HUP INT; exec setsid " + agent + " hold 20 https://" + name + "/endless?every=1ms) &")
		l.hears("live")
		inside := l.insiders(t)
		t.Cleanup(func() { // where the test fails nothing of it may stay, either
			for _, p := range alive(inside) {
				if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		})
		if len(inside) < 4 {
			t.Fatalf("inside are only %v", inside)
		}
		if err := l.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if r := l.end(); r.status != -1 || r.stderr != "" {
			t.Errorf("status %d, want it killed; stderr %q", r.status, r.stderr)
		}
		eventually(t, func() string {
			if left := alive(inside); len(left) > 0 {
				return "left are " + left[0].command
			}
			return ""
		})
		l.wantNothingLeft(t)
		if left := filesOf(t, u, tmp); strings.Join(left, "\n") != strings.Join(before, "\n") {
			t.Errorf("files left: %q, before: %q", left, before)
		}
		if data, err := os.ReadFile(l.path); err != nil || !bytes.Contains(data, []byte(name)) {
			t.Errorf("the log: %v", err)
		}
		l.ctl("status", l.name).want(t, 3)
		if arrivals(addr) == 0 {
			t.Error("nothing arrived: the case shows nothing")
		}
	})
}

// process is one of /proc, told from a later one with its number by when it began.
type process struct {
	pid            int
	start, command string
}

// insiders are the processes in the sandbox's PID namespace.
func (l *live) insiders(t *testing.T) []process {
	t.Helper()
	var found []process
	level := len(strings.Fields(statusLine("self", "NSpid")))
	for _, p := range descendants(l.cmd.Process.Pid) {
		if len(strings.Fields(statusLine(strconv.Itoa(p.pid), "NSpid"))) > level {
			found = append(found, p)
		}
	}
	return found
}

// wantNothingLeft fails the test where a descendant, or the socket, is left.
func (l *live) wantNothingLeft(t *testing.T) {
	t.Helper()
	if left := descendants(l.cmd.Process.Pid); len(left) > 0 {
		t.Errorf("processes left: %+v", left)
	}
	eventually(t, func() string {
		if _, err := os.Lstat(l.socket()); err == nil {
			return "the control socket is left"
		}
		return ""
	})
}

// descendants are the processes below pid.
func descendants(pid int) []process {
	children := map[int][]process{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, parent, ok := stat(n); ok {
			children[parent] = append(children[parent], p)
		}
	}
	var all []process
	for next := children[pid]; len(next) > 0; {
		p := next[0]
		all = append(all, p)
		next = append(next[1:], children[p.pid]...)
	}
	return all
}

// stat reads a process that is no zombie.
func stat(pid int) (p process, parent int, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, 0, false
	}
	text := string(data)
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[end+1:])
	if fields[0] == "Z" || fields[0] == "X" {
		return p, 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return process{pid, fields[19], text[open+1 : end]}, parent, err == nil
}

// alive are those that still run.
func alive(before []process) (left []process) {
	for _, p := range before {
		if now, _, ok := stat(p.pid); ok && now.start == p.start {
			left = append(left, p)
		}
	}
	return left
}

func statusLine(pid, name string) string {
	data, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return rest
		}
	}
	return ""
}

// filesOf lists what is where sandboxes could leave something.
func filesOf(t *testing.T, u user, tmp string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		runtimeDirOf(t, u) + "/*", runtimeDirOf(t, u) + "/exeat/*", tmp + "/*", tmp + "/*/*", "/run/exeat/*",
	} {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, matches...)
	}
	// The directories of the sockets stay.
	return slices.DeleteFunc(found, func(path string) bool {
		return path == runtimeDirOf(t, u)+"/exeat" || filepath.Dir(path) == tmp && strings.HasPrefix(filepath.Base(path), "exeat-")
	})
}

// TestATerminalIsTheCommands runs under script(1): the command has a terminal in
// the foreground, its size, and ^C reaches it.
func TestATerminalIsTheCommands(t *testing.T) {
	script := require.Tool(t, "script")
	each(t, func(t *testing.T, u user) {
		inner := strings.Join([]string{
			binary, "run", "--quiet", "--resolver", "203.0.113.53", "--", "sh", "-c",
			`'test -t 0 && test -t 1 && stty size && ps -o stat= -p $$ && trap "echo caught; exit 3" INT && echo waiting && while :; do sleep 0.02; done'`,
		}, " ")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, script, "-qec", "stty rows 33 cols 77; "+inner, "/dev/null")
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDirOf(t, u))
		attr := *u.attr
		cmd.SysProcAttr, cmd.Dir = &attr, scratch
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out watched
		out.on, out.seen = "waiting", make(chan struct{})
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-out.seen:
		case <-ctx.Done():
		}
		if _, err := stdin.Write([]byte{3}); err != nil {
			t.Error(err)
		}
		err = cmd.Wait()
		if cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("%v, want status 3: %s", err, out.text.String())
		}
		for _, want := range []string{"33 77", "+", "caught"} {
			if !strings.Contains(out.text.String(), want) {
				t.Errorf("no %q: %s", want, out.text.String())
			}
		}
	})
}

// watched tells when a word has been written.
type watched struct {
	text bytes.Buffer
	on   string
	seen chan struct{}
	told bool
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.text.Write(p)
	if !w.told && strings.Contains(w.text.String(), w.on) {
		w.told = true
		close(w.seen)
	}
	return n, err
}
