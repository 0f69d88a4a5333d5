//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// process is something the lab has started.
type process struct {
	cmd    *exec.Cmd
	output said
	ended  chan struct{} // closed when it has ended
}

// said is what a process has written so far.
type said struct {
	mu   sync.Mutex
	text []byte
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p...)
	return len(p), nil
}

// said gives what the process has written to its output and its errors.
func (p *process) said() []byte {
	p.output.mu.Lock()
	defer p.output.mu.Unlock()
	return bytes.Clone(p.output.text)
}

// starter starts the lab's processes, on one thread: they die with it (prctl(2),
// PR_SET_PDEATHSIG), and so with this program, whatever ends it.
type starter struct{ work chan func() }

func newStarter() *starter {
	s := &starter{work: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the last of the work
		for f := range s.work {
			f()
		}
	}()
	return s
}

// start starts a command in a namespace.
func (s *starter) start(ns netns.NsHandle, cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	result := make(chan error, 1)
	s.work <- func() {
		if err := unix.Setns(int(ns), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter the namespace: %w", err)
			return
		}
		result <- cmd.Start()
	}
	return <-result
}

// start runs a command in a namespace as uid. It does not outlive the lab.
func (l *lab) start(ns netns.NsHandle, uid uint32, command ...string) (*process, error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	p.cmd.Dir = l.dir
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := l.starter.start(ns, p.cmd); err != nil {
		return nil, err
	}
	go func() {
		p.cmd.Wait() // how it ended is in ProcessState, for whoever asks
		close(p.ended)
	}()
	return p, nil
}

// stop ends the process, its children with it, and waits.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	<-p.ended
	return nil
}

// alive is an error when the process has ended.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %s", p.cmd.Path, p.said())
	default:
		return nil
	}
}

// usage is what a process and its children hold or have used.
type usage struct {
	cpu         float64 // seconds
	rss         float64 // bytes
	descriptors float64
}

// usage adds up the process and everything below it.
func (p *process) usage() (usage, error) {
	var u usage
	if p == nil {
		return u, nil
	}
	pids, err := treeOf(p.cmd.Process.Pid)
	if err != nil {
		return u, err
	}
	for _, pid := range pids {
		_, fields, err := statOf(pid)
		if err != nil {
			return u, err
		}
		seconds, err := clockOf(pid)
		if err != nil {
			return u, err
		}
		u.cpu += seconds
		pages, err := strconv.ParseUint(fields[21], 10, 64)
		if err != nil {
			return u, err
		}
		u.rss += float64(pages) * float64(os.Getpagesize())
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return u, err
		}
		u.descriptors += float64(len(list))
	}
	return u, nil
}

// clockOf is the processor time of a process, of threads that have ended too, in seconds
// by its own clock (clock_getcpuclockid(3)): /proc counts in hundredths, which is a tenth
// of what some of these measurements are.
func clockOf(pid int) (float64, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of linux/posix-timers.h
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("the clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()).Seconds(), nil
}

// statOf gives the name in /proc/PID/stat and the fields from the third (state) on.
func statOf(pid int) (name string, fields []string, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", nil, err
	}
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return "", nil, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	fields = strings.Fields(string(text[to+1:]))
	if len(fields) < 22 {
		return "", nil, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	return string(text[from+1 : to]), fields, nil
}

// treeOf lists a process and its descendants.
func treeOf(root int) ([]int, error) {
	tree := []int{root}
	for i := 0; i < len(tree); i++ {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", tree[i]))
		if err != nil {
			return nil, err
		}
		for _, list := range lists {
			text, err := os.ReadFile(list)
			if errors.Is(err, os.ErrNotExist) {
				continue // the thread has just ended
			}
			if err != nil {
				return nil, err
			}
			for _, field := range strings.Fields(string(text)) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					return nil, err
				}
				tree = append(tree, pid)
			}
		}
	}
	return tree, nil
}
