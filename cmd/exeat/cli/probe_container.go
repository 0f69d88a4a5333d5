//go:build !image

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"github.com/exeat/exeat/probe"
)

// engineCommands makes command lines of a container engine.
type engineCommands interface {
	Command(ctx context.Context, args ...string) *exec.Cmd
}

// containerProbe runs the probe in a container by the engine's exec, with what
// capabilities the container's own commands have: this binary is copied in for
// the time, and removed again.
type containerProbe struct {
	engine    engineCommands
	container string
	binary    string
}

// newContainerProbe probes with our own binary, which must be able to run there.
func newContainerProbe(engine engineCommands, container string) (containerProbe, error) {
	if runtime.GOOS != "linux" {
		return containerProbe{}, usagef("this binary does not run in a container: copy a Linux one in, and run it with exeat exec")
	}
	self, err := os.Executable()
	return containerProbe{engine, container, self}, err
}

// run copies, probes and removes.
func (p containerProbe) run(ctx context.Context, flags probeFlags) (report probe.Report, err error) {
	// In the root directory, since copies do not get into tmpfs mounts.
	path := "/.exeat-probe-" + strconv.Itoa(os.Getpid())
	if err := p.engine.Command(ctx, "cp", p.binary, p.container+":"+path).Run(); err != nil {
		return report, fmt.Errorf("copy the probe into the container (whose root must be writable): %w", err)
	}
	defer func() {
		// Also when we were interrupted: what was copied must not stay.
		remove := p.engine.Command(context.WithoutCancel(ctx), "exec", "--user", "0", p.container, path, "probe", "--remove")
		if failed := remove.Run(); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s is left in the container: %w", path, failed))
		}
	}()
	var stdout, stderr bytes.Buffer
	cmd := p.engine.Command(ctx, append([]string{"exec", p.container, path, "probe", "-o", "json"}, flags.arguments()...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != statusNo) {
		return report, fmt.Errorf("probe in the container: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		return report, fmt.Errorf("read what the probe in the container found: %w", err)
	}
	return report, nil
}

// arguments are the flags that say what is tried, as a command line.
func (f probeFlags) arguments() []string {
	var args []string
	for _, id := range f.cases {
		args = append(args, "--case", id)
	}
	for _, addr := range f.targets {
		args = append(args, "--target", addr)
	}
	for flag, value := range map[string]string{"--name": f.name, "--through": f.through, "--allowed": f.allowed, "--marker": f.marker} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	if f.safe {
		args = append(args, "--safe")
	}
	return args
}

// removeSelf removes the binary that runs.
func removeSelf() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return os.Remove(self)
}
