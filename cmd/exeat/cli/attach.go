//go:build !image

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sandbox"
)

// attachFlags are the flags of `attach`.
type attachFlags struct {
	sidecarFlags
	unsafe, watch bool
	netRaw        netRawFlag
}

func newAttachCommand(s *streams) *cobra.Command {
	flags := attachFlags{netRaw: true}
	cmd := &cobra.Command{
		Use:   "attach CONTAINER",
		Short: "Put a running container behind a sidecar",
		Long: `Pauses the container, looks for what would undo the guard, starts a sidecar in its
network namespace, and resumes it once the rules are loaded and proven. From
then on CONTAINER is the name of the sandbox for every other command.

Refused, with every finding and its remedy: a container that has NET_ADMIN,
SYS_ADMIN or their like, is privileged, shares a PID namespace or the host's
network, or sees an engine's socket. --unsafe lets that pass, and "exeat status"
says so from then on.

What was open before stays open only where the policy allows it. A container that
restarts gets a new namespace, which nobody guards: so its restart policy is set
to "no". --watch waits for a restart by hand, pauses the container, attaches again
and says how long it was unprotected.`,
		Example: `  exeat attach task-17 --policy policy.json
  exeat attach web --allow db.internal.test:5432 --watch`,
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.attach(cmd.Context(), flags, args[0])
		},
	}
	flags.register(cmd)
	f := cmd.Flags()
	f.BoolVar(&flags.unsafe, "unsafe", false, "attach whatever is found; status names it")
	f.BoolVar(&flags.watch, "watch", false, "stay, and attach again when the container was restarted")
	f.Var(&flags.netRaw, "sandbox-net-raw", "whether the container may have NET_RAW")
	return cmd
}

// attachReport is what `attach -o json` prints, a line each time.
type attachReport struct {
	Name       string            `json:"name"`
	Engine     string            `json:"engine"`
	Container  string            `json:"container"`
	Sidecar    string            `json:"sidecar"`
	Generation uint64            `json:"generation"`
	Unsafe     []sandbox.Finding `json:"unsafe,omitempty"`
	// UnprotectedMS is how long it ran in a new namespace without a guard.
	UnprotectedMS int64 `json:"unprotected_ms,omitempty"`
}

func (s *streams) attach(ctx context.Context, flags attachFlags, name string) error {
	engine, err := flags.find(ctx)
	if err != nil {
		return err
	}
	a := &attaching{s: s, engine: engine, flags: flags, name: name}
	if a.spec, a.begin, err = flags.input(s, name); err != nil {
		return err
	}
	a.spec.Name, a.spec.NoNetRaw = name+"-exeat", !bool(flags.netRaw)
	a.spec.Title = name
	if err := a.once(ctx, time.Time{}); err != nil {
		return err
	}
	if flags.watch {
		return a.watch(ctx)
	}
	return nil
}

// attaching is one `attach` at work.
type attaching struct {
	s      *streams
	engine *sandbox.Engine
	flags  attachFlags
	name   string
	spec   sandbox.Spec
	begin  beginning
	// container and sidecar are the ids of what was attached last.
	container, sidecar string
}

// once pauses, inspects, attaches and resumes. since is when the container began
// to run unprotected; zero where it always has.
func (a *attaching) once(ctx context.Context, since time.Time) error {
	var refused *sandbox.Refused
	target, err := a.engine.Target(ctx, a.name, bool(a.flags.netRaw), a.flags.unsafe)
	switch {
	case errors.As(err, &refused):
		return &exitError{code: statusNo, err: err}
	case err != nil:
		return noSidecar(err)
	}
	changed, err := a.engine.StopRestarting(ctx, target.Container)
	if err != nil {
		return &exitError{code: statusNo, err: err}
	}
	if changed {
		a.s.complain("exeat: the restart policy of %s was %q and is \"no\" now: restarted, it would be unprotected", a.name, target.Container.Restart)
	}
	if !target.Container.Paused {
		if err := a.engine.Pause(ctx, target.Container.ID); err != nil {
			return err
		}
	}
	return a.paused(ctx, target, since)
}

// paused attaches to a container that does not run just now, and resumes it. On a
// failure it stays paused: what it would do next nobody would see.
func (a *attaching) paused(ctx context.Context, target sandbox.Target, since time.Time) error {
	report := attachReport{Name: a.name, Engine: a.engine.Name(), Container: target.Container.ID, Unsafe: target.Unsafe}
	if !since.IsZero() {
		report.UnprotectedMS = time.Since(since).Milliseconds()
	}
	sidecar, err := a.engine.Attach(ctx, target, a.spec, func(ctx context.Context, id string) error {
		c := a.engine.Client(id)
		defer c.Close()
		result, err := enterFirst(ctx, c, a.begin)
		report.Generation = result.Generation
		a.s.warn("policy", result.Warnings)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n%s stays paused; to let it go on unguarded: %s unpause %s", err, a.name, a.engine.Name(), a.name)
	}
	if err := a.engine.Resume(context.WithoutCancel(ctx), target.Container.ID); err != nil {
		return err
	}
	a.container, a.sidecar, report.Sidecar = target.Container.ID, sidecar, sidecar
	return a.s.writeAttached(report, a.begin.document.Mode)
}

func (s *streams) writeAttached(r attachReport, mode policy.Mode) error {
	if s.format == formatJSON {
		return s.json(r)
	}
	for _, f := range r.Unsafe {
		s.complain("exeat: warning: let pass by --unsafe: %s", f)
	}
	if r.UnprotectedMS > 0 {
		s.complain("exeat: %s was restarted, and unprotected for %d ms", r.Name, r.UnprotectedMS)
	}
	return s.printf("%s is guarded: %s, generation %d\n", r.Name, mode, r.Generation)
}

// watch attaches again whenever the container was started again, until ctx ends.
func (a *attaching) watch(ctx context.Context) error {
	ctx, stop := notifyEnd(ctx)
	defer stop()
	for event, err := range a.engine.Events(ctx, a.container) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case event.What != "start":
			a.s.complain("exeat: %s has ended; waiting for it to be started again", a.name)
			continue
		}
		if err := a.again(ctx, event.Time); err != nil {
			return err
		}
	}
	return nil
}

// again guards a container that was restarted, with what was in force before.
func (a *attaching) again(ctx context.Context, started time.Time) error {
	if err := a.engine.Pause(ctx, a.container); err != nil {
		return err
	}
	unprotected := time.Since(started)
	begin, err := a.inForce(ctx)
	if err != nil {
		a.s.complain("exeat: warning: what was in force can't be asked for (%v): no network", err)
		begin = beginning{document: policy.Document{Mode: policy.ModeNoNetwork}}
	}
	a.begin = begin
	if err := a.engine.Remove(ctx, a.sidecar); err != nil && !errors.Is(err, sandbox.ErrNoContainer) {
		return err
	}
	return a.once(ctx, time.Now().Add(-unprotected))
}

// inForce is the policy of the sidecar that was left behind in the old namespace.
// Where a lease was on it, that which follows the lease takes over at once.
func (a *attaching) inForce(ctx context.Context) (beginning, error) {
	c := a.engine.Client(a.sidecar)
	defer c.Close()
	var b beginning
	phases, err := c.Phases(ctx)
	if err != nil {
		return b, err
	}
	for _, p := range phases.Phases {
		b.phases = append(b.phases, policy.Phase{Name: p.Name, Policy: p.Policy, Source: p.Source})
	}
	state, err := c.Policy(ctx)
	if err != nil {
		return b, err
	}
	b.document, b.phase = state.Policy, state.Phase
	if state.Lease != nil {
		b.document, b.phase = policy.Document{Mode: policy.ModeNoNetwork}, state.Lease.Then.Phase
		if then := state.Lease.Then.Policy; then != nil {
			b.document = *then
		}
	}
	if !knownPhase(b.phases, b.phase) {
		b.phase = ""
	}
	return b, nil
}

func knownPhase(phases []policy.Phase, name string) bool {
	for _, p := range phases {
		if p.Name == name {
			return true
		}
	}
	return false
}

func newDetachCommand(s *streams) *cobra.Command {
	var flag engineFlag
	var open bool
	cmd := &cobra.Command{
		Use:   "detach SANDBOX",
		Short: "Remove the sidecar of an attached container",
		Long: `Removes the sidecar that "exeat attach" started, once no-network is in force. The
rules stay: the container reaches nothing. With --open they are removed as well,
and it reaches everything.`,
		Example: "  exeat detach task-17\n  exeat detach task-17 --open",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			engine, err := flag.find(cmd.Context())
			if err != nil {
				return err
			}
			car, err := engine.Any(cmd.Context(), args[0])
			if err != nil {
				return noSidecar(err)
			}
			if car.Attached() == "" {
				return usagef("%s was not attached: use exeat down", args[0])
			}
			if err := s.shutAndRemove(cmd.Context(), engine, car); err != nil {
				return err
			}
			if open {
				if err := engine.Open(cmd.Context(), car.Attached(), car.Image); err != nil {
					return fmt.Errorf("the sidecar is gone and the rules are not: nothing is reached: %w", err)
				}
			}
			return s.writeDetached(args[0], open)
		},
	}
	flag.register(cmd)
	cmd.Flags().BoolVar(&open, "open", false, "remove the rules, too: the container then reaches everything")
	return cmd
}

func (s *streams) writeDetached(name string, open bool) error {
	reaches := "nothing"
	if open {
		reaches = "everything"
	}
	if s.format == formatJSON {
		return s.json(map[string]string{"name": name, "reaches": reaches})
	}
	return s.printf("%s is not guarded any more, and reaches %s\n", name, reaches)
}

// unsafeHealth shows in status what --unsafe let pass, and what was found since.
func unsafeHealth(car *sandbox.Sidecar) []api.Health {
	if car == nil {
		return nil
	}
	var health []api.Health
	if unsafe := car.Unsafe(); len(unsafe) > 0 {
		health = append(health, api.Health{Part: "unsafe", Message: "let pass by --unsafe: " + strings.Join(unsafe, "; ")})
	}
	for _, f := range car.Findings() {
		health = append(health, api.Health{Part: "unsafe", Message: "the guard can be undone: " + f.String()})
	}
	return health
}
