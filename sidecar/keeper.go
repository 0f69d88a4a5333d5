//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
)

// Keeper is process 1 of a joined sidecar: it owns the listening sockets and what
// was last in force, starts the worker that does everything else, and starts it
// again when it dies. It never accepts.
type Keeper struct {
	config JoinedConfig
	// command is the worker's command line, the executable first.
	command  []string
	out, err *os.File

	base    handover
	held    []held
	safe    []io.Closer // what must stay open as long as we live
	memory  *memory
	log     *audit.File
	control net.Listener
}

// Keep sets everything up, gives up every privilege but NET_ADMIN, and runs
// workers until ctx ends. command starts a worker, which calls Work. The rules
// stay when it returns, whatever the reason.
func Keep(ctx context.Context, c JoinedConfig, command []string, stdout, stderr *os.File) (err error) {
	LimitMemory()
	k := &Keeper{config: c.withDefaults(), command: command, out: stdout, err: stderr}
	defer func() { err = errors.Join(err, k.close()) }()
	if err := k.setUp(ctx); err != nil {
		return err
	}
	if err := renounce(k.base.Own.UID); err != nil {
		return fmt.Errorf("drop privileges: %w", err)
	}
	return k.run(ctx)
}

func (k *Keeper) close() error {
	var errs []error
	for _, h := range k.held {
		errs = append(errs, h.file.Close())
	}
	for _, c := range k.safe {
		errs = append(errs, c.Close())
	}
	if k.control != nil {
		errs = append(errs, k.control.Close())
	}
	if k.memory != nil && k.memory.disk != nil {
		errs = append(errs, k.memory.disk.Close())
	}
	if k.log != nil {
		errs = append(errs, k.log.Close())
	}
	return errors.Join(errs...)
}

// Restarts: the first are at once; after so many in a row of workers that died
// soon each is waited for twice as long.
const (
	atOnce     = 8
	minBackoff = 50 * time.Millisecond
	soon       = 10 * time.Second
	// firstAttempts are how often the first worker is tried before we give up.
	firstAttempts = 3
	maxBackoff    = 5 * time.Second
	// servedBackoff is the longest wait after a worker that had put something in force:
	// meanwhile connections are held, and whoever can crash one must not gain more.
	servedBackoff = 100 * time.Millisecond
	stopGrace     = 3 * time.Second // beyond the drain, until the worker is killed
)

// run keeps a worker alive until ctx ends.
func (k *Keeper) run(ctx context.Context) error {
	// The parent-death signal follows the thread that starts a worker (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	early := 0
	restart := ""
	for attempt := 1; ; attempt++ {
		began, commits := time.Now(), k.memory.commits()
		status, err := k.live(ctx, restart)
		switch {
		case ctx.Err() != nil:
			return errors.Join(err, stopped(status))
		case err != nil && k.memory.cameUp():
			// A machine that is short of something for a moment must not end us.
			fmt.Fprintln(k.err, "exeatd:", err)
			restart = describe(status)
		case err != nil:
			return err
		case k.memory.cameUp():
			restart = describe(status)
		case attempt == firstAttempts:
			return fmt.Errorf("the worker does not come up, it %s", describe(status))
		}
		if status.Exited() && status.ExitStatus() == FamiliesStatus {
			if err := k.listenMissing(); err != nil {
				return fmt.Errorf("an address family appeared and we could not listen on it: %w", err)
			}
		}
		if early++; time.Since(began) > soon {
			early = 0
		}
		longest := maxBackoff
		if k.memory.commits() > commits {
			longest = servedBackoff
		}
		if early > atOnce && !wait(ctx, min(minBackoff<<min(early-atOnce, 10), longest)) {
			return nil
		}
	}
}

// live is the life of one worker.
func (k *Keeper) live(ctx context.Context, restart string) (syscall.WaitStatus, error) {
	w, err := k.start(restart)
	if err != nil {
		return 0, err
	}
	return k.await(ctx, w)
}

// wait waits; false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stopped is how a worker that was told to stop ended.
func stopped(status syscall.WaitStatus) error {
	if status.Exited() && status.ExitStatus() == 0 {
		return nil
	}
	return fmt.Errorf("the worker did not stop in order: %s", describe(status))
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "ended by signal: " + status.Signal().String()
	}
	return fmt.Sprintf("ended with status %d", status.ExitStatus())
}

// worker is one that runs.
type worker struct {
	pid    int
	ended  chan waited
	helped sync.WaitGroup // goroutines that serve it
	closes []io.Closer
}

type waited struct {
	status syscall.WaitStatus
	err    error
}

// start starts a worker and serves what it asks for.
func (k *Keeper) start(restart string) (*worker, error) {
	h := k.base
	h.Restart = restart
	h.State, h.Distrust, h.Names, h.Between = k.memory.recall()
	told, err := h.file()
	if err != nil {
		return nil, fmt.Errorf("hand over to the worker: %w", err)
	}
	defer told.Close()
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("hand over to the worker: %w", err)
	}
	defer theirs.Close()
	w := &worker{ended: make(chan waited, 1), closes: []io.Closer{ours}}
	out, err := k.outputOf(w)
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	files := []*os.File{nil, out, k.err, told, theirs}
	for _, held := range k.held {
		files = append(files, held.file)
	}
	process, err := os.StartProcess(k.command[0], k.command, &os.ProcAttr{
		Files: files, Env: os.Environ(), Sys: startAs(k.base.Own.UID),
	})
	if out != k.out {
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the worker: %w", err), w.close())
	}
	w.pid = process.Pid
	if err := process.Release(); err != nil { // reap waits for it
		return nil, errors.Join(err, w.close())
	}
	w.helped.Go(func() {
		if err := k.memory.serve(ours); err != nil {
			fmt.Fprintln(k.err, "exeatd:", err)
		}
	})
	go func() { w.ended <- reap(w.pid) }()
	return w, nil
}

func (w *worker) close() error {
	var errs []error
	for _, c := range w.closes {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// outputOf is a worker's standard output: ours, or a pipe to the log file, which
// only we may set aside and make anew.
func (k *Keeper) outputOf(w *worker) (*os.File, error) {
	if k.log == nil {
		return k.out, nil
	}
	r, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	w.closes = append(w.closes, r)
	w.helped.Go(func() {
		if err := copyLines(k.log, r); err != nil {
			fmt.Fprintln(k.err, "exeatd: write the log:", err)
		}
	})
	return out, nil
}

// await waits for a worker to end, and tells it to when ctx ends.
func (k *Keeper) await(ctx context.Context, w *worker) (syscall.WaitStatus, error) {
	var end waited
	select {
	case end = <-w.ended:
	case <-ctx.Done():
		end = k.stop(w)
	}
	// Its ends of the socket and the pipe are closed: both are read to their end.
	w.helped.Wait()
	end.err = errors.Join(end.err, w.close())
	return end.status, end.err
}

// stop tells a worker to drain, and kills it when that takes too long.
func (k *Keeper) stop(w *worker) waited {
	signal := func(s syscall.Signal) {
		if err := syscall.Kill(w.pid, s); err != nil && !errors.Is(err, unix.ESRCH) {
			fmt.Fprintln(k.err, "exeatd: stop the worker:", err)
		}
	}
	signal(syscall.SIGTERM)
	t := time.NewTimer(k.config.Drain + stopGrace)
	defer t.Stop()
	select {
	case end := <-w.ended:
		return end
	case <-t.C:
	}
	signal(syscall.SIGKILL)
	return <-w.ended
}

// reap waits for a child, and on the way for every orphan that process 1
// inherits.
func reap(pid int) waited {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return waited{err: fmt.Errorf("wait for the worker: %w", err)}
		case got == pid:
			return waited{status: status}
		}
	}
}

// socketPair makes the socket between the keeper and one worker.
func socketPair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "worker")
	f := os.NewFile(uintptr(fds[0]), "keeper")
	conn, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("socketpair made a %T", conn), conn.Close(), theirs.Close())
	}
	return unixConn, theirs, nil
}
