//go:build linux

package sealed

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// openTerminal opens a pseudo-terminal: its master and its slave.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { m.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	s, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return m, s
}

// probeShell is the least that a shell does: it runs the engine as a job in the
// foreground of the terminal, says when it was stopped, continues it at once,
// and says how it ended and who has the terminal then.
func probeShell(args []string) int {
	give := func(group int) error { return (&terminal{file: os.Stdin, group: group}).take() }
	own := unix.Getpgrp()
	cmd := exec.Command(os.Getenv(binaryVariable), args...)
	cmd.Env = append(environmentWithout(probeVariable), probeVariable+"=engine")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if len(args) > 0 && args[0] == "|" {
		// As in `exeat … | cat`: the output is no terminal.
		cmd = exec.Command("/bin/sh", append([]string{"-c", `trap : INT; "$0" "$@" | (trap "" INT; cat)`, os.Getenv(binaryVariable)}, args[1:]...)...)
		cmd.Env = append(environmentWithout(probeVariable), probeVariable+"=engine")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Foreground: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		return say(err)
	}
	job := cmd.Process.Pid
	for {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(job, &ws, unix.WUNTRACED, nil); err != nil {
			return say(err)
		}
		foreground, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
		if err != nil {
			return say(err)
		}
		if !ws.Stopped() {
			fmt.Printf("job ended: %d, terminal is the job's: %v\n", ws.ExitStatus(), foreground == job)
			return 0
		}
		fmt.Printf("job stopped, terminal is the job's: %v\n", foreground == job)
		if err := errors.Join(give(own), give(job)); err != nil {
			return say(err)
		}
		if err := unix.Kill(-job, unix.SIGCONT); err != nil {
			return say(err)
		}
	}
}

// console drives a terminal as a person does.
type console struct {
	t      *testing.T
	master *os.File

	mu   sync.Mutex
	seen bytes.Buffer
	at   int // what was looked at already
}

// openConsole runs the job in the shell of a terminal of its own.
func openConsole(t *testing.T, job ...string) *console {
	t.Helper()
	require.UserNamespaces(t)
	master, slave := openTerminal(t)
	cmd := exec.Command(os.Getenv(binaryVariable), job...)
	cmd.Env = append(os.Environ(), probeVariable+"=shell", "PS1=$ ", "HISTFILE=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	c := &console{t: t, master: master}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			c.mu.Lock()
			c.seen.Write(b[:n])
			c.mu.Unlock()
			if err != nil {
				return // EIO: nobody has the other side any more
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		master.Close()
		<-done
	})
	return c
}

func (c *console) press(keys string) {
	c.t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

// pressUntil presses again where nothing is shown in time: a shell that is told of
// a signal just before it reads looks at it when it has read.
func (c *console) pressUntil(keys, want string) {
	c.t.Helper()
	for range 10 {
		c.press(keys)
		if c.shows(want, time.Second) {
			return
		}
	}
	c.t.Fatalf("no %q after %q", want, keys)
}

// expect waits until the terminal shows the text, after what was expected before.
func (c *console) expect(want string) {
	c.t.Helper()
	if !c.shows(want, 30*time.Second) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.t.Fatalf("no %q in %q", want, c.seen.String()[c.at:])
	}
}

// shows is expect with a bound that is no failure.
func (c *console) shows(want string, within time.Duration) bool {
	deadline := time.Now().Add(within)
	for {
		c.mu.Lock()
		seen := c.seen.String()
		c.mu.Unlock()
		if i := strings.Index(seen[c.at:], want); i >= 0 {
			c.at += i + len(want)
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

func TestTheTerminalsKeysReachTheCommand(t *testing.T) {
	c := openConsole(t, "", "/bin/sh", "-c", `trap 'echo interrupted' INT; echo ready; while :; do read -r line || continue; echo "read $line"; [ "$line" = end ] && exit 4; done`)
	c.expect("ready")
	c.press("hello\n")
	c.expect("read hello")
	c.pressUntil(ctrlC, "interrupted")
	c.press(ctrlZ)
	c.expect("job stopped, terminal is the job's: true")
	c.press("again\n")
	c.expect("read again")
	c.press(ctrlZ)
	c.expect("job stopped, terminal is the job's: true")
	c.press("end\n")
	c.expect("job ended: 4, terminal is the job's: true")
}

func TestAnInteractiveShellHasJobControl(t *testing.T) {
	bash := require.Tool(t, "bash")
	c := openConsole(t, "", bash, "--norc", "--noprofile", "-i")
	c.expect("$ ")
	c.press("echo $((6*7))\n")
	c.expect("42")
	// It says that it runs, and shows by an echo of its own that it reads.
	c.press(`sh -c 'echo u"p"; exec cat'` + "\n")
	c.expect("up\r\n")
	c.press("one\n")
	c.expect("one\r\none\r\n")
	c.press(ctrlZ)
	c.expect("Stopped")
	c.press("jobs | grep -c cat\n")
	c.expect("1\r\n")
	c.press("fg\n")
	c.expect("exec cat'")
	c.press("two\n")
	c.expect("two\r\n")
	c.expect("two\r\n")
	c.press(ctrlC)
	c.expect("$ ")
	c.press("kill -STOP $$; echo went on\n")
	c.expect("job stopped")
	c.expect("went on")
	c.press("exit 7\n")
	c.expect("job ended: 7, terminal is the job's: true")
	c.mu.Lock()
	defer c.mu.Unlock()
	if seen := c.seen.String(); strings.Contains(seen, "job control") || strings.Contains(seen, "process group") {
		t.Errorf("the shell complains: %q", seen)
	}
}

func TestAPipelineSharesTheTerminal(t *testing.T) {
	c := openConsole(t, "|", "", "/bin/sh", "-c", `trap 'echo interrupted >/dev/tty' INT; echo ready >/dev/tty; until read -r line </dev/tty; do :; done; echo "read $line"; exit 4`)
	c.expect("ready")
	c.pressUntil(ctrlC, "interrupted")
	c.press(ctrlZ)
	c.expect("job stopped")
	c.press("hello\n")
	c.expect("read hello")
	c.expect("job ended: 0, terminal is the job's: true")
}
