//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const sandboxName = "demo"

// stage is the sandbox with the agent in it, seen from its orchestrator, which
// does everything by the commands that a person would type.
type stage struct {
	exeat, dir, ca string
	out, err       io.Writer

	sandbox *exec.Cmd
	steps   io.WriteCloser
	answers *bufio.Scanner
	log     *exec.Cmd
	events  chan string
}

// openStage starts the sandbox and follows its log.
func openStage(ctx context.Context, s stage) (*stage, error) {
	phases := filepath.Join(s.dir, "phases.json")
	if err := os.WriteFile(phases, []byte(phasesDocument), 0o644); err != nil {
		return nil, err
	}
	if err := os.Mkdir(s.runtimeDir(), 0o700); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.say("$ exeat run --name %s --phases phases.json --phase setup -- agent", sandboxName)
	s.sandbox = s.command(ctx, "run", "--quiet", "--name", sandboxName, "--phases", phases, "--phase", "setup",
		"--resolver", "203.0.113.53", "--", self, "agent", s.ca)
	s.sandbox.Stderr = s.err
	if s.steps, err = s.sandbox.StdinPipe(); err != nil {
		return nil, err
	}
	answers, err := s.sandbox.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.answers = bufio.NewScanner(answers)
	if err := s.sandbox.Start(); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if err := s.follow(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return &s, nil
}

// command makes one of the exeat under demonstration.
func (s *stage) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.exeat, args...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+s.runtimeDir())
	return cmd
}

// runtimeDir is where the control socket is: hidden in the sandbox, as the user's own is.
func (s *stage) runtimeDir() string { return filepath.Join(s.dir, "runtime") }

// ready waits for the sandbox to answer.
func (s *stage) ready(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for {
		out, err := s.command(ctx, "status", sandboxName).CombinedOutput()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("the sandbox was not ready within 10 s: %w\n%s", err, out)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow reads the sandbox's log as it is written.
func (s *stage) follow(ctx context.Context) error {
	s.log = s.command(ctx, "logs", sandboxName, "-f")
	s.log.Stderr = s.err
	lines, err := s.log.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.log.Start(); err != nil {
		return err
	}
	s.events = make(chan string, 1024)
	go func() {
		defer close(s.events)
		scanner := bufio.NewScanner(lines)
		for scanner.Scan() {
			s.events <- scanner.Text()
		}
	}()
	return nil
}

// try has the agent take one step.
func (s *stage) try(st step) (outcome, error) {
	if err := json.NewEncoder(s.steps).Encode(st); err != nil {
		return outcome{}, fmt.Errorf("tell the agent: %w", err)
	}
	if !s.answers.Scan() {
		return outcome{}, errors.Join(errors.New("the agent ended"), s.answers.Err())
	}
	var o outcome
	err := json.Unmarshal(s.answers.Bytes(), &o)
	return o, err
}

// orchestrate runs a command of exeat, shows it, and gives what it printed.
func (s *stage) orchestrate(ctx context.Context, args ...string) (string, error) {
	s.say("$ exeat %s", strings.Join(args, " "))
	cmd := s.command(ctx, args...)
	cmd.Stderr = s.err
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("exeat %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// quiet is how long the log must be silent before what it said is complete.
const quiet = 60 * time.Millisecond

// showLog prints what the log has said since the last time.
func (s *stage) showLog() {
	for {
		select {
		case line, ok := <-s.events:
			if !ok {
				return
			}
			s.say("    log  %s", line)
		case <-time.After(quiet):
			return
		}
	}
}

func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(s.out, format+"\n", args...)
}

// close ends the agent, and with it the sandbox and its log.
func (s *stage) close() error {
	err := s.steps.Close()
	if waited := s.sandbox.Wait(); waited != nil {
		err = errors.Join(err, fmt.Errorf("exeat run: %w", waited))
	}
	if s.log == nil {
		return err
	}
	for range s.events { // until the log has ended
	}
	if waited := s.log.Wait(); waited != nil {
		err = errors.Join(err, fmt.Errorf("exeat logs: %w", waited))
	}
	return err
}
