//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/exeat/exeat/control/client"
)

// daemonStarts is P10's other half: exeatd answers, its rules in force, 150 ms after
// its start, and is ready, its probe passed, after at most a second.
func daemonStarts(l *lab) (section, error) {
	s := section{columns: []string{"exeatd", "ms"}}
	program := filepath.Join(l.dir, "exeatd")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "github.com/exeat/exeat/cmd/exeatd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		s.notes = append(s.notes, fmt.Sprintf("not measured: the program cannot be built here: %v: %s", err, out))
		return s, nil
	}
	var answers, ready []float64
	for i := range 2 * l.size.rounds {
		a, r, err := l.startDaemon(program, filepath.Join(l.dir, fmt.Sprintf("control-%d.sock", i)))
		if err != nil {
			return s, err
		}
		answers, ready = append(answers, a), append(ready, r)
	}
	first, passed := figureOfValues(answers), figureOfValues(ready)
	s.rows = append(s.rows, []string{"rules in force, control socket answers", first.format("%.0f")}, []string{"ready, the probe passed", passed.format("%.0f")})
	s.verdicts = append(s.verdicts,
		atMost("ms from exeatd's start until it enforces and answers", first.median, 150),
		atMost("ms from exeatd's start until it is ready", passed.median, 1000))
	return s, nil
}

// startDaemon starts exeatd in a namespace of its own and gives the ms until its
// control socket answers and until it is ready.
func (l *lab) startDaemon(program, socket string) (answers, ready float64, err error) {
	near, far, err := newPair([]string{agentAddr}, []string{stays})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, near.Close(), far.Close()) }()
	group, err := newGroup(filepath.Base(socket))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, group.remove()) }()
	cmd := exec.Command(program, "--control", socket, "--allow", "pypi.test", "--resolver", stays, "--log", filepath.Join(l.dir, "exeatd.log"))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.dir.Fd())}
	c := client.New(socket)
	defer c.Close()
	start := time.Now()
	if err := within(near, cmd.Start); err != nil {
		return 0, 0, err
	}
	answers, ready, err = awaitDaemon(c, start)
	if err != nil {
		err = errors.Join(err, cmd.Process.Kill())
	} else {
		err = cmd.Process.Signal(syscall.SIGTERM)
	}
	if ended := cmd.Wait(); err != nil {
		err = errors.Join(err, ended, errors.New(said.String()))
	}
	return answers, ready, err
}

func awaitDaemon(c *client.Client, start time.Time) (answers, ready float64, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), start.Add(20*time.Second))
	defer cancel()
	for ctx.Err() == nil {
		status, err := c.Status(ctx)
		ms := float64(time.Since(start).Nanoseconds()) / 1e6
		if err == nil && answers == 0 {
			answers = ms
		}
		if err == nil && status.Ready {
			return answers, ms, nil
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return 0, 0, fmt.Errorf("exeatd is not ready after 20 s: %w", err)
		}
	}
	return 0, 0, ctx.Err()
}

// group is a control group, by which exeatd's traffic is told from the sandbox's.
type group struct{ dir *os.File }

func newGroup(name string) (*group, error) {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(root + "/cgroup.procs"); err != nil {
			continue
		}
		path := filepath.Join(root, fmt.Sprintf("exeat-bench-%d-%s", os.Getpid(), name))
		if err := os.Mkdir(path, 0o755); err != nil {
			return nil, err
		}
		dir, err := os.Open(path)
		if err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		return &group{dir}, nil
	}
	return nil, errors.New("no file system of control groups, version 2")
}

// remove waits for the last process of the group, which is about to end.
func (g *group) remove() error {
	err := g.dir.Close()
	for range 500 {
		left := os.Remove(g.dir.Name())
		if left == nil || errors.Is(left, os.ErrNotExist) {
			return err
		}
		if !errors.Is(left, syscall.EBUSY) {
			return errors.Join(err, left)
		}
		if err := pause(context.Background(), 10*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.Join(err, fmt.Errorf("%s is still in use", g.dir.Name()))
}
