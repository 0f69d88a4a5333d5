package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// ErrNoEngine says that no container engine can be driven.
var ErrNoEngine = errors.New("no container engine answers")

// ErrNoContainer says that the engine knows no container of that name.
var ErrNoContainer = errors.New("no such container")

// findTimeout is how long an engine may take to say that it is there.
const findTimeout = 10 * time.Second

// grace is how long an engine's command may take to end once it was told to.
const grace = 2 * time.Second

// Engine is a container engine's command line. Its methods are safe for
// concurrent use.
type Engine struct {
	name string // what it is: docker or podman
	path string // the command
}

// names are the engines in the order in which they are looked for.
func names() []string { return []string{"docker", "podman"} }

// Find gives the engine called name. Without a name it is the first that
// answers, Docker before Podman.
func Find(ctx context.Context, name string) (*Engine, error) {
	candidates := names()
	if name != "" {
		candidates = []string{name}
	}
	var problems []error
	for _, candidate := range candidates {
		e, err := find(ctx, candidate)
		if err == nil {
			return e, nil
		}
		problems = append(problems, err)
	}
	return nil, fmt.Errorf("%w: %w", ErrNoEngine, errors.Join(problems...))
}

func find(ctx context.Context, name string) (*Engine, error) {
	if name != "docker" && name != "podman" {
		return nil, fmt.Errorf("engine %q: want docker or podman", name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("%s is not installed", name)
	}
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	e := &Engine{name: name, path: path}
	if _, err := e.output(ctx, "ps", "--quiet", "--last", "1"); err != nil {
		return nil, err
	}
	// podman-docker puts Podman behind Docker's name, and it then speaks as Podman.
	if version, err := e.output(ctx, "--version"); err == nil && strings.HasPrefix(string(version), "podman") {
		e.name = "podman"
	}
	return e, nil
}

// Name is "docker" or "podman".
func (e *Engine) Name() string { return e.name }

// Command makes a command of the engine's that the caller runs. When ctx ends it
// is told to end, as a terminal would, before it is killed.
func (e *Engine) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.path, args...)
	cmd.WaitDelay = grace
	return cmd
}

// CommandError is a command of the engine's that failed.
type CommandError struct {
	Engine, Command string
	Status          int
	Said            string
}

// Error implements error: the engine's own words are the message.
func (e *CommandError) Error() string {
	said := e.Said
	if said == "" {
		said = fmt.Sprintf("exit status %d", e.Status)
	}
	return fmt.Sprintf("%s %s: %s", e.Engine, e.Command, said)
}

// output runs a command to its end and gives what it wrote to standard output.
func (e *Engine) output(ctx context.Context, args ...string) ([]byte, error) {
	return e.input(ctx, nil, args...)
}

// input does so with something on standard input.
func (e *Engine) input(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := e.Command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s %s: %w", e.name, args[0], ctx.Err())
	case errors.As(err, &exit):
		return nil, &CommandError{e.name, args[0], exit.ExitCode(), complaint(stderr.String())}
	}
	return nil, fmt.Errorf("%s %s: %w", e.name, args[0], err)
}

// complaint leaves out what an engine's error says besides: its prefix and the
// hint at its help.
func complaint(stderr string) string {
	var kept []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "See '") || strings.HasPrefix(line, "Run '") {
			continue
		}
		for _, prefix := range []string{"docker: ", "Error response from daemon: ", "Error: "} {
			line = strings.TrimPrefix(line, prefix)
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, "; ")
}
