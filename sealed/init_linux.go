package sealed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// init ties process 1 to the thread that is the process to others (/proc/1),
// which is where an init function runs: what is given up is given up there, and
// CMD is started from it.
func init() {
	if isInit() {
		runtime.LockOSThread()
	}
}

func isInit() bool { return len(os.Args) > 0 && os.Args[0] == initName }

// Init is the entry of the sandbox's process 1. It returns at once in every
// other process; in that one it never does. It must be the first call of main.
func Init() {
	if isInit() {
		exit(runInit())
	}
}

// exit ends process 1, and with it all others, at once: it has nothing for the
// runtime's exit hooks, one of which waits for a second in race-enabled binaries.
func exit(status int) { syscall.Exit(status) }

// runInit builds the sandbox, starts CMD in it when told, and lives as long as
// CMD: when it ends, so does every process of the PID namespace.
func runInit() int {
	catchSignals()
	c := channel{fdControl}
	o, err := readOrders()
	if err != nil {
		return refuse(c, err)
	}
	warnings, out, err := build(o)
	if err != nil {
		return refuse(c, err)
	}
	if err := c.send(message{Kind: kindReady, Files: out.names, Warnings: warnings}, out.fds...); err != nil {
		return StatusRefused
	}
	for _, fd := range out.fds {
		if err := unix.Close(fd); err != nil {
			return refuse(c, os.NewSyscallError("close", err))
		}
	}
	m, early, err := awaitRelease(c)
	if err != nil {
		return orphaned(o)
	}
	o.Env = append(o.Env, m.Env...)
	return supervise(c, o, early)
}

// awaitRelease waits for the word to start CMD. What came early is for CMD too:
// signals that hit the engine meanwhile.
func awaitRelease(c channel) (release message, early []message, err error) {
	for {
		m, err := c.receive()
		if err != nil || m.Kind == kindRelease {
			return m, early, err
		}
		early = append(early, m)
	}
}

// refuse tells the engine why nothing was started.
func refuse(c channel, err error) int {
	m := message{Kind: kindFailed, Status: StatusRefused, Text: err.Error()}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		m.Errno = int(errno)
	}
	if err := c.send(m); err != nil {
		fmt.Fprintln(os.Stderr, "exeat: sandbox:", m.Text)
	}
	return StatusRefused
}

// catchSignals keeps process 1 alive: the terminal sends it what it sends to
// CMD, and CMD may send it anything. What was ignored when we started stays so,
// for CMD's sake (nohup).
func catchSignals() {
	c := make(chan os.Signal, 1)
	for n := syscall.Signal(1); n < 65; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG:
			continue
		}
		if !signal.Ignored(n) {
			signal.Notify(c, n)
		}
	}
}

func readOrders() (orders, error) {
	f := os.NewFile(fdOrders, "orders")
	b, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return orders{}, fmt.Errorf("read the orders: %w", err)
	}
	var o orders
	if err := json.Unmarshal(b, &o); err != nil {
		return orders{}, fmt.Errorf("read the orders: %w", err)
	}
	return o, nil
}

// build does all that takes privileges.
func build(o orders) ([]string, handout, error) {
	if !o.Off.Descriptors {
		if err := closeOnExec(fdControl); err != nil {
			return nil, handout{}, err
		}
	}
	ipv6, err := configureLoopback()
	if err != nil {
		return nil, handout{}, err
	}
	out, err := openListeners(ipv6)
	if err != nil {
		return nil, handout{}, err
	}
	warnings, err := arrangeMounts(o)
	if err != nil {
		return nil, handout{}, err
	}
	// By its path, so that no way leads back to what is hidden above it.
	if err := os.Chdir(o.Dir); err != nil {
		return nil, handout{}, fmt.Errorf("the working directory %s cannot be reached in the sandbox: %w", o.Dir, err)
	}
	return warnings, out, nil
}

// closeOnExec keeps every descriptor from first on out of CMD (bypass B76).
func closeOnExec(first int) error {
	err := unix.CloseRange(uint(first), ^uint(0)>>32, unix.CLOSE_RANGE_CLOEXEC)
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return os.NewSyscallError("close_range", err)
	}
	// Before Linux 5.11.
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return err
	}
	for _, path := range open {
		fd, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			return err
		}
		if fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// supervise starts CMD and waits for its end, reaping whatever is left to us.
func supervise(c channel, o orders, early []message) int {
	keep := uint64(0)
	if o.Root {
		keep = rootCapabilities
	}
	if err := renounce(keep, o.Off); err != nil {
		return refuse(c, err)
	}
	pid, failure := startCommand(o)
	if failure != nil {
		if err := c.send(message{Kind: kindFailed, Status: failure.Status, Text: failure.Message}); err != nil {
			return StatusRefused
		}
		return failure.Status
	}
	if err := c.send(message{Kind: kindStarted}); err != nil {
		return orphaned(o)
	}
	go obey(c, o, pid, early)
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return refuse(c, os.NewSyscallError("wait4", err))
		case got != pid:
			continue
		}
		m := message{Kind: kindExited, Status: ws.ExitStatus()}
		switch {
		case ws.Stopped():
			m = message{Kind: kindStopped, Signal: int(ws.StopSignal())}
		case ws.Signaled():
			m.Status = 128 + int(ws.Signal())
		}
		if err := c.send(m); err != nil {
			return orphaned(o)
		}
		if m.Kind == kindExited {
			// An engine that is being killed takes the message and does nothing more:
			// obey hears whether it lives.
			select {}
		}
	}
}

// obey carries out what the engine says, and has said early. When it falls silent
// for ever, it is dead: nothing may outlive it.
func obey(c channel, o orders, pid int, early []message) {
	target := pid
	if o.Terminal >= 0 {
		target = -pid // CMD leads a group of its own
	}
	for {
		var m message
		var err error
		if len(early) > 0 {
			m, early = early[0], early[1:]
		} else if m, err = c.receive(); err != nil {
			exit(orphaned(o))
		}
		switch m.Kind {
		case kindTaken:
			exit(m.Status)
		case kindSignal:
			err = unix.Kill(target, unix.Signal(m.Signal))
		case kindContinue:
			if m.Foreground && o.Terminal >= 0 {
				err = unix.IoctlSetPointerInt(o.Terminal, unix.TIOCSPGRP, pid)
			}
			err = errors.Join(err, unix.Kill(target, unix.SIGCONT))
		}
		// A command that has just ended takes no more signals, and a terminal that
		// was hung up has no foreground.
		if err != nil && !errors.Is(err, unix.ESRCH) && o.Terminal < 0 {
			fmt.Fprintln(os.Stderr, "exeat: sandbox:", err)
		}
	}
}

// orphaned removes what the engine left in the host's file system. The
// directories were opened before the mounts changed.
func orphaned(o orders) int {
	for i, name := range o.Remove {
		if err := unix.Unlinkat(fdRemove+i, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			fmt.Fprintf(os.Stderr, "exeat: sandbox: remove %s: %v\n", name, err)
		}
	}
	return 128 + int(unix.SIGKILL)
}
