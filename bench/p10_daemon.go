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

	"github.com/vishvananda/netns"

	"github.com/exeat/exeat/control/client"
)

// daemonStarts is P10's other half: exeatd answers, its rules in force, 150 ms after
// its start, and is ready, its probe passed, after at most a second.
func daemonStarts(l *lab) (section, error) {
	s := section{columns: []string{"exeatd", "ms"}}
	program, err := l.build("exeatd")
	if err != nil {
		s.notes = append(s.notes, "not measured: "+err.Error())
		return s, nil
	}
	var answers, ready []float64
	for i := range 2 * l.size.rounds {
		a, r, err := l.timeDaemon(program, i)
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

// timeDaemon starts exeatd and gives the ms until its control socket answers and until
// it is ready.
func (l *lab) timeDaemon(program string, number int) (answers, ready float64, err error) {
	d, err := l.startDaemon(program, number)
	if err != nil {
		return 0, 0, err
	}
	answers, ready, err = awaitDaemon(d.client, d.began)
	return answers, ready, errors.Join(err, d.stop())
}

// daemon is exeatd in a namespace of its own, which a cable joins to another.
type daemon struct {
	near, far netns.NsHandle
	group     *group
	cmd       *exec.Cmd
	said      bytes.Buffer
	client    *client.Client
	began     time.Time
}

// startDaemon starts the program and does not wait for it.
func (l *lab) startDaemon(program string, number int) (*daemon, error) {
	name := fmt.Sprintf("control-%d.sock", number)
	near, far, err := newPair([]string{agentAddr}, []string{stays})
	if err != nil {
		return nil, err
	}
	group, err := newGroup(name)
	if err != nil {
		return nil, errors.Join(err, near.Close(), far.Close())
	}
	socket := filepath.Join(l.dir, name)
	d := &daemon{near: near, far: far, group: group, client: client.New(socket), began: time.Now()}
	d.cmd = exec.Command(program, "--control", socket, "--allow", originName, "--resolver", stays, "--log", filepath.Join(l.dir, "exeatd.log"))
	d.cmd.Stdout, d.cmd.Stderr = &d.said, &d.said
	d.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.dir.Fd())}
	if err := l.starter.start(near, d.cmd); err != nil {
		return nil, errors.Join(err, d.release())
	}
	return d, nil
}

// stop ends the program, which must end well.
func (d *daemon) stop() error {
	err := d.cmd.Process.Signal(syscall.SIGTERM)
	// What it is told to do is done in its drain of some seconds, or never.
	late := time.AfterFunc(20*time.Second, func() { d.cmd.Process.Kill() })
	defer late.Stop()
	if ended := d.cmd.Wait(); ended != nil {
		err = errors.Join(err, fmt.Errorf("exeatd: %w: %s", ended, &d.said))
	}
	return errors.Join(err, d.release())
}

func (d *daemon) release() error {
	d.client.Close()
	return errors.Join(d.group.remove(), d.near.Close(), d.far.Close())
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
