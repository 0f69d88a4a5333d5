package sealed

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal while CMD has it: CMD then leads a
// process group of its own in the foreground, as a shell's job does, and we
// stand in for the shell. nil means that CMD stays in our group, where a
// pipeline needs it, and the terminal treats it as it treats us.
type terminal struct {
	fd    int // 0 to 2
	file  *os.File
	group int // ours, to which the terminal is given back

	mu       sync.Mutex
	restored bool
}

// findTerminal says whether CMD is to have the terminal: it reads and writes
// there, and we are in the foreground.
func findTerminal(stdio [3]*os.File) (*terminal, error) {
	group := unix.Getpgrp()
	for _, f := range stdio[:2] {
		if fg, err := foregroundOf(f); err != nil || fg != group {
			return nil, nil //nolint:nilerr // not a terminal, or not ours
		}
	}
	return &terminal{fd: 0, file: stdio[0], group: group}, nil
}

// foregroundOf is the group in the foreground of the terminal; an error where
// the file is not our controlling terminal.
func foregroundOf(f *os.File) (group int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { group, inner = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) }); err != nil {
		return 0, err
	}
	return group, inner
}

// groupHasTerminal says whether the terminal's keys reach our own group.
func groupHasTerminal() bool {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	group, err := foregroundOf(f)
	return err == nil && group == unix.Getpgrp()
}

// foreground says whether the shell has given us the terminal.
func (t *terminal) foreground() bool {
	group, err := foregroundOf(t.file)
	return err == nil && group == t.group
}

// take makes our group the foreground again. That is allowed from the background
// only while SIGTTOU is blocked (tcsetpgrp(3)).
func (t *terminal) take() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, old unix.Sigset_t
	block.Val[0] = 1 << (unix.SIGTTOU - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old); err != nil {
		return err
	}
	raw, err := t.file.SyscallConn()
	if err == nil {
		var inner error
		if err = raw.Control(func(fd uintptr) { inner = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPGRP, t.group) }); err == nil {
			err = inner
		}
	}
	if masked := unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil); masked != nil {
		return masked
	}
	return err
}

// restore gives the terminal back to our group when CMD has ended.
func (t *terminal) restore() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.restored {
		return
	}
	t.restored = true
	// A terminal that was hung up has no foreground to restore.
	if err := t.take(); err != nil {
		return
	}
}

// suspend stops our whole group, as the terminal would have with CMD in it. What
// follows is done when the shell continues us (onContinue). False says that we
// go on, since nobody would continue us or we are not to be stopped.
func (t *terminal) suspend() bool {
	if t.take() != nil || signal.Ignored(unix.SIGTSTP) || orphanedGroup(t.group) {
		return false
	}
	return unix.Kill(0, unix.SIGTSTP) == nil
}

// orphanedGroup says whether no process of our session watches over the group,
// which the kernel then does not stop (setpgid(2)): whether the first of our
// ancestors that is not in the group is in another session.
func orphanedGroup(group int) bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return true
	}
	for pid := unix.Getppid(); pid > 0; {
		parent, pgrp, sid, err := relations(pid)
		if err != nil {
			return true
		}
		if pgrp != group {
			return sid != session
		}
		pid = parent
	}
	return true
}

// relations reads a process's parent, group and session (proc(5), stat).
func relations(pid int) (parent, group, session int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	// The name before them may hold anything.
	rest := string(b[bytes.LastIndexByte(b, ')')+1:])
	var state string
	_, err = fmt.Sscan(rest, &state, &parent, &group, &session)
	return parent, group, session, err
}

// onContinue calls resume whenever the shell continues us: it may give the
// terminal to a command that went on in the background.
func (t *terminal) onContinue(resume func()) (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGCONT)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-c:
				resume()
			}
		}
	}()
	return func() {
		signal.Stop(c)
		close(quit)
		<-done
	}
}
