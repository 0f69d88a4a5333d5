//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/policy"
)

// names numbers what must be unique in a test run.
var names atomic.Uint32

// fresh gives a name of the test's own with an address of its own.
func fresh(t *testing.T) (name, addr string) {
	t.Helper()
	lab.NeedWorld(t)
	n := names.Add(1)
	if n > 250 {
		t.Fatal("no address is left")
	}
	name, addr = fmt.Sprintf("n%d.fresh.test", n), fmt.Sprintf("192.0.2.%d", n)
	world.SetName(name, "A "+addr)
	return name, addr
}

// live is a running sandbox whose command is a shell that the test talks to.
type live struct {
	t      *testing.T
	user   user
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	pipe   io.ReadCloser // what stdout reads
	stdout *bufio.Reader
	stderr *bytes.Buffer
	journal
}

// start starts a sandbox with a shell in it. It ends with the test at the latest.
func (s sandbox) start(t *testing.T) *live {
	t.Helper()
	name := "live-" + strconv.Itoa(int(names.Add(1)))
	s.flags = append([]string{"--name", name}, s.flags...)
	s, j := s.logged(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := s.command(ctx, t, "sh")
	l := &live{t: t, user: s.user, name: name, cmd: cmd, stderr: new(bytes.Buffer), journal: j}
	var err error
	if l.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.pipe, l.stdout = stdout, bufio.NewReader(stdout)
	cmd.Stderr = l.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
			t.Log(err)
		}
	})
	l.sh("exec 2>&1").want(t, 0)
	return l
}

// sh runs a line of shell in the sandbox and waits for its end.
func (l *live) sh(line string) result {
	l.t.Helper()
	l.tell(line + "\nprintf '\\n=end= %d\\n' $?")
	var out strings.Builder
	began := time.Now()
	for {
		text, err := l.stdout.ReadString('\n')
		if status, ended := strings.CutPrefix(text, "=end= "); ended {
			n, err := strconv.Atoi(strings.TrimSpace(status))
			if err != nil {
				l.t.Fatal(err)
			}
			return result{stdout: strings.TrimSuffix(out.String(), "\n"), status: n, took: time.Since(began)}
		}
		out.WriteString(text)
		if err != nil {
			l.t.Fatalf("the shell is gone: %v\nstdout: %s\nstderr: %s", err, out.String(), l.stderr)
		}
	}
}

// tell gives the shell a line and does not wait.
func (l *live) tell(line string) {
	l.t.Helper()
	if _, err := io.WriteString(l.stdin, line+"\n"); err != nil {
		l.t.Fatalf("%v\nstderr: %s", err, l.stderr)
	}
}

// hearTimeout is how long a line of the shell may take, on a machine that is busy.
const hearTimeout = 2 * time.Minute

// hears waits for a line of the shell.
func (l *live) hears(want string) {
	l.t.Helper()
	var all strings.Builder
	late := time.AfterFunc(hearTimeout, func() {
		if err := l.pipe.Close(); err != nil {
			l.t.Error(err)
		}
	})
	defer late.Stop()
	for {
		text, err := l.stdout.ReadString('\n')
		if strings.TrimSpace(text) == want {
			return
		}
		all.WriteString(text)
		if err != nil {
			l.t.Fatalf("no line %q: %v\nstdout: %s\nstderr: %s", want, err, all.String(), l.stderr)
		}
	}
}

// endTimeout is how long a sandbox may take to end once its shell has.
const endTimeout = 20 * time.Second

// end ends the shell and waits for the sandbox.
func (l *live) end() result {
	l.t.Helper()
	if err := l.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		l.t.Fatal(err)
	}
	// The end of the output is the end of everybody who could write to it.
	late := time.AfterFunc(endTimeout, func() {
		if err := l.pipe.Close(); err != nil {
			l.t.Error(err)
		}
	})
	rest, err := io.ReadAll(l.stdout)
	late.Stop()
	if err != nil {
		l.t.Errorf("somebody is left who holds the output open: %v", err)
	}
	r := result{stdout: string(rest)}
	var exit *exec.ExitError
	if err := l.cmd.Wait(); errors.As(err, &exit) {
		r.status = exit.ExitCode()
	} else if err != nil {
		l.t.Fatal(err)
	}
	r.stderr = l.stderr.String()
	return r
}

// socket is the path of its control socket.
func (l *live) socket() string {
	return filepath.Join(runtimeDirOf(l.t, l.user), "exeat", l.name+".sock")
}

// client gives a client of the control API; for sandboxes of the first user.
func (l *live) client() *client.Client {
	l.t.Helper()
	c := client.New(l.socket())
	l.t.Cleanup(c.Close)
	return c
}

// ctl runs a command of exeat as the sandbox's user.
func (l *live) ctl(args ...string) result { l.t.Helper(); return l.ctlWith("", args...) }

// ctlWith does so with something on standard input.
func (l *live) ctlWith(stdin string, args ...string) result {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDirOf(l.t, l.user))
	attr := *l.user.attr
	cmd.SysProcAttr, cmd.Dir, cmd.Stdin = &attr, scratch, strings.NewReader(stdin)
	return outcome(l.t, cmd)
}

// set swaps the policy by the command line.
func (l *live) set(document string, flags ...string) result {
	l.t.Helper()
	r := l.ctlWith(document, append([]string{"policy", "set", l.name, "-"}, flags...)...)
	r.want(l.t, 0, "in force")
	return r
}

// decided gives the decisions so far, as `exeat logs -o json` tells them.
func (l *live) decided(flags ...string) []string {
	l.t.Helper()
	r := l.ctl(append([]string{"logs", l.name, "-o", "json"}, flags...)...)
	r.want(l.t, 0)
	return decisionsOf(readEvents(l.t, []byte(r.stdout)))
}

// swap swaps the policy over the API.
func swap(t *testing.T, c *client.Client, document string) api.SwapResult {
	t.Helper()
	d, _, err := policy.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	result, err := c.Swap(t.Context(), api.SwapRequest{Policy: &d})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// eventually waits until check says nothing more.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		why := check()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Error(why)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
