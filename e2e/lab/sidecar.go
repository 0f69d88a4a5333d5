//go:build linux

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
)

// Sidecar is an exeatd in a namespace of its own.
type Sidecar struct {
	*Namespace
	*client.Client
	// Cmd is the keeper's process, once it is begun.
	Cmd *exec.Cmd
	// Dir is a directory of its own, which has the control Socket.
	Dir, Socket string
	// Wrap, where not nil, is a command line that executes the one after it.
	Wrap       []string
	Flags, Env []string
	// Stdout has the log.
	Stdout, Stderr Output
	// Ended gives how the keeper ended; who takes it puts it back.
	Ended chan error

	binary string
}

// Output is what a process wrote, while it writes on.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String gives what was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Tail gives the last n bytes.
func Tail(s string, n int) string { return s[max(0, len(s)-n):] }

// Prepare makes a sidecar that is not started yet, whose program is binary.
func Prepare(t testing.TB, binary string, flags ...string) *Sidecar {
	t.Helper()
	s := &Sidecar{Namespace: NewNamespace(t), Dir: t.TempDir(), binary: binary}
	s.Socket = filepath.Join(s.Dir, "control.sock")
	s.Flags = append([]string{"--control", s.Socket}, flags...)
	s.Client = client.New(s.Socket)
	t.Cleanup(func() {
		s.Client.Close()
		if t.Failed() {
			t.Logf("exeatd wrote:\n%s\n%s", Tail(s.Stderr.String(), 4000), Tail(s.Stdout.String(), 4000))
		}
	})
	return s
}

// Begin starts the process.
func (s *Sidecar) Begin(t testing.TB) {
	t.Helper()
	line := append(append(s.Wrap[:len(s.Wrap):len(s.Wrap)], s.binary), s.Flags...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, s.Env...)
	cmd.Stdout, cmd.Stderr = &s.Stdout, &s.Stderr
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if s.Group != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(s.Group.Fd())
	}
	if err := s.In(cmd.Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	s.Cmd, s.Ended = cmd, ended
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err == nil {
			<-ended
			s.awaitEmpty(t)
		}
	})
}

// Kill kills the keeper and waits until its worker is gone too.
func (s *Sidecar) Kill(t testing.TB) {
	t.Helper()
	if err := s.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.Ended <- <-s.Ended
	s.awaitEmpty(t)
}

// awaitEmpty waits until a killed keeper's worker is gone too.
func (s *Sidecar) awaitEmpty(t testing.TB) {
	if s.Group == nil {
		return
	}
	Eventually(t, "the end of the worker", func() bool {
		left, err := os.ReadFile(s.Group.Name() + "/cgroup.procs")
		return err != nil || len(left) == 0
	})
}

// AwaitReady waits until the sidecar is ready; where it ends before, or hangs,
// the test fails.
func (s *Sidecar) AwaitReady(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := s.Ready(ctx)
		cancel()
		if err == nil {
			return
		}
		select {
		case end := <-s.Ended:
			s.Ended <- end
			t.Fatalf("exeatd ended: %v\n%s", end, s.Stderr.String())
		default:
		}
		if time.Now().After(deadline) {
			if err := s.Cmd.Process.Signal(syscall.SIGQUIT); err == nil { // its stacks
				s.Ended <- <-s.Ended
			}
			var refused *api.Error
			if errors.As(err, &refused) {
				t.Fatalf("not ready: %v %v", err, refused.Problems)
			}
			t.Fatalf("not ready: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Keeper is the process that holds the listeners.
func (s *Sidecar) Keeper() int { return s.Cmd.Process.Pid }

// Worker is the one that serves, which there must be.
func (s *Sidecar) Worker(t testing.TB) (pid int) {
	t.Helper()
	Eventually(t, "a worker", func() bool {
		pid = s.FindWorker()
		return pid != 0
	})
	return pid
}

// FindWorker gives 0 where no worker runs.
func (s *Sidecar) FindWorker() (pid int) {
	// The thread that starts workers need not be the first.
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.Keeper()))
	if err != nil {
		return 0
	}
	for _, task := range tasks {
		if data, err := os.ReadFile(task); err == nil {
			if _, err := fmt.Sscan(string(data), &pid); err == nil {
				return pid
			}
		}
	}
	return 0
}

// Refused says that err is how the sandbox sees that it may not go somewhere.
func Refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}
