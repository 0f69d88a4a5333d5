package inside

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain is also the program that keeps the ready file.
func TestMain(m *testing.M) {
	c := Call{Args: os.Args[1:], Env: os.Getenv, In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	if role := c.readiness(); role != nil {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
		defer stop()
		os.Exit(role(ctx, c.Args[1]))
	}
	os.Exit(m.Run())
}

// Whichever of the two processes is killed, the file goes on saying what is so.
func TestTheReadyFileOutlivesWhoeverIsKilled(t *testing.T) {
	var ready atomic.Bool
	socket, _ := serveReadiness(t, &ready)
	file := filepath.Join(t.TempDir(), "ready")
	cmd := exec.Command("/proc/self/exe", harborWatch, file)
	cmd.Env = append(os.Environ(), "EXEAT_CONTROL="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group := cmd.Process.Pid
	t.Cleanup(func() {
		if err := unix.Kill(-group, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("it ended by itself")
		}
	})
	works := func(when string) {
		t.Helper()
		for _, now := range []bool{true, false, true} {
			ready.Store(now)
			becomes(t, file, now, when)
		}
	}
	works("at first")
	for _, role := range []string{harborKeep, harborWatch, harborKeep, harborWatch} {
		victim := processOf(t, group, role)
		if err := unix.Kill(victim, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		works("once " + role + " was killed")
	}
}

// processOf waits for the process of a group that has the role.
func processOf(t *testing.T, group int, role string) int {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range all {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				continue
			}
			if in, err := unix.Getpgid(pid); err != nil || in != group {
				continue
			}
			line, err := os.ReadFile(dir + "/cmdline")
			if err == nil && strings.Contains(string(line), "\x00"+role+"\x00") {
				return pid
			}
		}
	}
	t.Fatalf("nobody is %s", role)
	return 0
}

// Told to end, both do, and the file is gone.
func TestTheReadyFileIsGoneOnceItsKeepersWereToldToEnd(t *testing.T) {
	var ready atomic.Bool
	ready.Store(true)
	socket, _ := serveReadiness(t, &ready)
	file := filepath.Join(t.TempDir(), "ready")
	cmd := exec.Command("/proc/self/exe", harborWatch, file)
	cmd.Env = append(os.Environ(), "EXEAT_CONTROL="+socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	becomes(t, file, true, "at first")
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	becomes(t, file, false, "at the end")
}
