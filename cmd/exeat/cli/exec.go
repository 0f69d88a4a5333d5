//go:build !image

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sandbox"
)

// A lease of `exec` lasts leaseFor, and is renewed every leaseRenewal while the
// command runs: should we be killed it ends by itself.
const (
	leaseFor     = 30 * time.Second
	leaseRenewal = 10 * time.Second
)

// execFlags are the flags of `exec`.
type execFlags struct {
	engineFlag
	phase, then string
	lease       time.Duration
	engineArgs  []string
}

func newExecCommand(s *streams) *cobra.Command {
	var flags execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX -- CMD [ARG...]",
		Short: "Run a command in a container, in a phase of its own",
		Long: `Runs CMD in a container, as "docker exec" does. With --phase it enters that phase
first and, whatever becomes of CMD, the one of --then (no-network by default)
afterwards. The phase is a lease that is renewed while CMD runs: should exeat be
killed, the sandbox enters --then by itself within 30 seconds.

A CMD that exeat was ended before goes on in the container, in the phase of --then:
engines have no way to end it from outside.

SANDBOX is a container behind a sidecar, or its sidecar where one container alone
is behind it. In a sandbox of "exeat run" no second command can be started.

Exit status: CMD's own, 128+N when exeat was ended by signal N; 125 when exeat
refused or failed, 126 when CMD is not executable, 127 when it is not found.`,
		Example: `  exeat exec --phase setup --then run task-17 -- pip install -r requirements.txt
  exeat exec --phase setup task-17 -- npm ci
  exeat exec task-17 -- id`,
		Args: arguments(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return refused(s.exec(cmd.Context(), flags, args[0], args[1:]))
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return refused(flagError(cmd, err)) })
	flags.register(cmd)
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows CMD is CMD's
	f.StringVar(&flags.phase, "phase", "", "enter the phase `NAME` while CMD runs")
	f.StringVar(&flags.then, "then", "", "what to enter afterwards: a `PHASE`, public or no-network (default no-network)")
	f.DurationVar(&flags.lease, "lease", leaseFor, "how long the phase outlives exeat, should exeat be killed")
	f.StringArrayVar(&flags.engineArgs, "engine-arg", nil, "a further `ARG` for the engine's exec, such as --user=1000 (repeatable)")
	return cmd
}

func (s *streams) exec(ctx context.Context, flags execFlags, name string, command []string) error {
	if command[0] == "--" {
		command = command[1:]
	}
	switch {
	case len(command) == 0:
		return usagef("say what to run: exeat exec SANDBOX -- CMD")
	case flags.then != "" && flags.phase == "":
		return usagef("--then follows the phase of --phase: say which")
	case flags.lease < 3*time.Second:
		return usagef("--lease %s: want 3s at least", flags.lease)
	}
	box, err := flags.open(ctx, s.err, name)
	if err != nil {
		return err
	}
	defer box.Close()
	if box.car == nil {
		return usagef("%s is a sandbox of exeat run, in which no second command can be started: that would be a way in. For a phase while its own command works, under a lease: exeat phase %s PHASE --for 10m --then PHASE", name, name)
	}
	container, err := commandTarget(*box.car, name)
	if err != nil {
		return err
	}
	run := func(ctx context.Context) error {
		return s.engineCommand(ctx, box.engine, append(append([]string{"exec"}, s.terminal(flags.engineArgs)...), append([]string{container}, command...)...))
	}
	ctx, stop := notifyEnd(ctx)
	defer stop()
	if flags.phase == "" {
		return run(ctx)
	}
	return s.inPhase(ctx, box, flags, run)
}

// commandTarget is the container that name means: itself, or the only one behind
// the sidecar of that name.
func commandTarget(car sandbox.Sidecar, name string) (string, error) {
	names := make([]string, 0, len(car.Joined))
	for _, c := range car.Joined {
		if c.Name == name || car.Attached() == c.ID && car.Title() == name || len(name) >= 12 && len(c.ID) >= len(name) && c.ID[:len(name)] == name {
			return c.ID, nil
		}
		names = append(names, c.Name)
	}
	switch len(car.Joined) {
	case 0:
		return "", fmt.Errorf("no container is behind sidecar %s yet", name)
	case 1:
		return car.Joined[0].ID, nil
	}
	return "", usagef("%d containers are behind sidecar %s: say which of %v", len(names), name, names)
}

// inPhase enters a phase under a lease, runs, and enters what follows whatever
// run's outcome was.
func (s *streams) inPhase(ctx context.Context, box guarded, flags execFlags, run func(context.Context) error) error {
	then := &api.Then{Phase: flags.then}
	if flags.then == "" || api.IsPolicyWord(flags.then) {
		mode := policy.ModeNoNetwork
		if flags.then != "" {
			mode = policy.Mode(flags.then)
		}
		then = &api.Then{Policy: &policy.Document{Mode: mode}}
	}
	entered, err := box.EnterPhase(ctx, flags.phase, api.EnterRequest{For: api.Duration(flags.lease), Then: then})
	var refused *api.Error
	switch {
	case errors.As(err, &refused):
		return err // answered: nothing was entered
	case err != nil:
		// The answer is what is missing: the phase may be in force, and its lease too long.
		if thenErr := enterThen(context.WithoutCancel(ctx), box, then); thenErr != nil && !errors.Is(thenErr, client.ErrUnreachable) {
			err = errors.Join(err, thenErr)
		}
		return err
	}
	s.warn("policy", entered.Warnings)
	renewing, stop := context.WithCancel(ctx)
	renewed := make(chan error, 1)
	go func() { renewed <- renewLease(renewing, box, flags.lease) }()
	err = run(ctx)
	stop()
	if renewErr := <-renewed; renewErr != nil {
		s.complain("exeat: warning: the lease of phase %s was not renewed to the end: %v", flags.phase, renewErr)
	}
	if thenErr := enterThen(context.WithoutCancel(ctx), box, then); thenErr != nil {
		var exit *exitError
		if errors.As(err, &exit) && exit.err != nil {
			thenErr = errors.Join(exit.err, thenErr)
		}
		return &exitError{code: statusRefused, err: fmt.Errorf("what follows phase %s was not entered, its lease ends within %s: %w", flags.phase, flags.lease, thenErr)}
	}
	return err
}

// thenTimeout is how long entering what follows may take.
const thenTimeout = 20 * time.Second

// enterThen enters what follows. A stream that broke is tried once more: entering
// twice does no harm.
func enterThen(ctx context.Context, box guarded, then *api.Then) error {
	ctx, cancel := context.WithTimeout(ctx, thenTimeout)
	defer cancel()
	err := enter(ctx, box, then)
	if errors.Is(err, client.ErrUnreachable) {
		err = enter(ctx, box, then)
	}
	return err
}

func enter(ctx context.Context, box guarded, then *api.Then) error {
	if then.Phase != "" {
		_, err := box.EnterPhase(ctx, then.Phase, api.EnterRequest{})
		return err
	}
	_, err := box.Swap(ctx, api.SwapRequest{Policy: then.Policy})
	return err
}

// renewLease keeps the lease alive until ctx ends. That somebody else has swapped
// since is no failure: what they swapped to is not ours to end.
func renewLease(ctx context.Context, box guarded, lease time.Duration) error {
	tick := time.NewTicker(min(leaseRenewal, lease/3))
	defer tick.Stop()
	var failed error
	for {
		select {
		case <-ctx.Done():
			return failed
		case <-tick.C:
		}
		_, err := box.RenewLease(ctx, api.Duration(lease))
		var refused *api.Error
		switch {
		case ctx.Err() != nil:
			return failed
		case errors.As(err, &refused) && refused.Code == api.CodeNoLease:
			return errors.New("another policy was put in force meanwhile")
		}
		failed = err // the next tick may do
	}
}

// terminal adds what an engine's exec or run needs to pass our standard input on.
func (s *streams) terminal(args []string) []string {
	args = append([]string{"--interactive"}, args...)
	in, inFile := s.in.(*os.File)
	out, outFile := s.out.(*os.File)
	if inFile && outFile && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd())) {
		args = append([]string{"--tty"}, args...)
	}
	return args
}

// engineCommand runs a command of the engine's on our own streams and gives its
// exit status as an error.
func (s *streams) engineCommand(ctx context.Context, engine *sandbox.Engine, args []string) error {
	cmd := engine.Command(ctx, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.in, s.out, s.err
	err := cmd.Run()
	if end := endedBy(ctx); end != nil {
		return end
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return &exitError{code: exit.ExitCode()}
	case errors.As(err, &exit):
		return &exitError{code: statusRefused, err: fmt.Errorf("%s was killed: %w", engine.Name(), err)}
	}
	return err
}

// endSignal is the cause of a context that a signal ended.
type endSignal struct{ signal syscall.Signal }

// Error implements error.
func (e *endSignal) Error() string { return "ended by " + e.signal.String() }

// notifyEnd ends the context at SIGINT, SIGTERM and SIGHUP, and says which it was.
func notifyEnd(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case sig := <-signals:
			if number, ok := sig.(syscall.Signal); ok {
				cancel(&endSignal{number})
			}
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// endedBy is the exit status of a command that a signal to us ended, nil where
// none did.
func endedBy(ctx context.Context) error {
	var end *endSignal
	if errors.As(context.Cause(ctx), &end) {
		return &exitError{code: 128 + int(end.signal)}
	}
	return nil
}
