package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Refused is a container that has something which would undo the guard.
type Refused struct{ Findings []Finding }

// Error implements error: one finding a line, each with its remedy.
func (e *Refused) Error() string {
	lines := make([]string, 0, len(e.Findings)+1)
	lines = append(lines, "refused, for the guard could be undone:")
	for _, f := range e.Findings {
		lines = append(lines, "  "+f.String())
	}
	return strings.Join(lines, "\n")
}

// Target is a running container that is fit to be attached to.
type Target struct {
	Container Container
	// Unsafe are the findings that were let pass.
	Unsafe []Finding
}

// Target looks at a running container and at all that share its network
// namespace. With unsafe what would undo the guard is let pass, but not what
// leaves nothing to attach to.
func (e *Engine) Target(ctx context.Context, name string, netRaw, unsafe bool) (Target, error) {
	all, err := e.running(ctx)
	if err != nil {
		return Target{}, err
	}
	e.heedVolumes(ctx, sharing(all, name))
	target, err := targetOf(all, name, netRaw)
	if err != nil {
		return target, err
	}
	var refused *Refused
	switch c := target.Container; {
	case len(target.Unsafe) == 0:
		return target, nil
	case !unsafe, c.Network == "host", c.Network == "none", c.Owner() != "":
		refused = &Refused{target.Unsafe}
		return target, refused
	}
	return target, nil
}

// sharing gives the container called name and those in its network namespace, itself
// first.
func sharing(all []Container, name string) []*Container {
	var group []*Container
	for i := range all {
		if means(all[i], name) {
			group = []*Container{&all[i]}
		}
	}
	if len(group) == 0 {
		return nil
	}
	for i := range all {
		if all[i].Owner() == group[0].ID {
			group = append(group, &all[i])
		}
	}
	return group
}

// targetOf finds the container called name, and what there is to be found.
func targetOf(all []Container, name string, netRaw bool) (Target, error) {
	group := sharing(all, name)
	if len(group) == 0 {
		return Target{}, fmt.Errorf("%w that runs: %s", ErrNoContainer, name)
	}
	target := Target{Container: *group[0]}
	for _, car := range sidecarsOf(all) {
		if car.ID == target.Container.ID {
			return target, fmt.Errorf("%s is a sidecar itself", name)
		}
		for _, c := range car.Joined {
			if c.ID == target.Container.ID {
				return target, fmt.Errorf("%s is guarded already, by sidecar %s", name, car.Title())
			}
		}
	}
	look := Look{NetRaw: netRaw}
	for _, c := range group {
		look.Beside = append(look.Beside, *c)
	}
	for i, c := range group {
		look.Joined = i > 0
		target.Unsafe = append(target.Unsafe, Findings(*c, look)...)
	}
	return target, nil
}

// StopRestarting sets a container's restart policy to no, lest it come back into
// a namespace that nobody guards (bypass.md B42). It says whether it had another.
func (e *Engine) StopRestarting(ctx context.Context, c Container) (changed bool, err error) {
	if c.Restart == "no" {
		return false, nil
	}
	if _, err := e.output(ctx, "update", "--restart=no", c.ID); err != nil {
		return false, fmt.Errorf("its restart policy %q would bring it back into a namespace that nobody guards, and cannot be changed (%w): start it with --restart=no", c.Restart, err)
	}
	return true, nil
}

// Pause stops every process of a container until Resume.
func (e *Engine) Pause(ctx context.Context, container string) error {
	_, err := e.output(ctx, "pause", container)
	return err
}

// Resume ends a pause.
func (e *Engine) Resume(ctx context.Context, container string) error {
	_, err := e.output(ctx, "unpause", container)
	return err
}

// Attach starts a sidecar in the network namespace of a paused target; prepare is
// called when it is ready, with its id. After an error the sidecar is gone, and
// whatever rules it loaded are left.
func (e *Engine) Attach(ctx context.Context, t Target, s Spec, prepare func(context.Context, string) error) (string, error) {
	s.Attach, s.Unsafe = t.Container.ID, t.Unsafe
	if s.FindResolver {
		resolvers, err := e.resolvers(ctx, t.Container, cmp.Or(s.Image, DefaultImage))
		if err != nil {
			return "", fmt.Errorf("find the resolver (or name it: --resolver ADDR): %w", err)
		}
		s.Args = append(resolvers, s.Args...)
	}
	id, err := e.Start(ctx, s)
	if err != nil {
		return "", err
	}
	if err := prepare(ctx, id); err != nil {
		return "", errors.Join(err, e.Remove(context.WithoutCancel(ctx), id))
	}
	return id, nil
}

// resolvers asks the engine whom containers of the target's network resolve by: a
// container of our own is made in it for a moment, for the target's file may have
// been written by the target (bypass.md B46). The engine's own resolver is left to
// exeatd to find.
func (e *Engine) resolvers(ctx context.Context, c Container, image string) ([]string, error) {
	args := []string{"run", "--rm", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--entrypoint", "/exeat"}
	if len(c.Networks) > 0 {
		args = append(args, "--network", c.Networks[0])
	}
	for _, server := range c.DNS {
		args = append(args, "--dns", server)
	}
	out, err := e.output(ctx, append(args, image, "resolv.conf")...)
	if err != nil {
		return nil, err
	}
	return nameservers(string(out)), nil
}

// nameservers gives --resolver for every server of a resolv.conf(5) that is not on
// loopback.
func nameservers(file string) []string {
	var args []string
	for line := range strings.Lines(file) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil && addr.Zone() == "" && !addr.IsLoopback() {
			args = append(args, "--resolver="+addr.String())
		}
	}
	return args
}

// Try makes a container with arguments of the engine's run, looks at it, and
// removes it again, never started: a *Refused says what would undo the guard that
// it is to join.
func (e *Engine) Try(ctx context.Context, name string, args []string) error {
	out, err := e.output(ctx, append([]string{"create", "--name", name}, args...)...)
	if err != nil {
		return err
	}
	id := strings.TrimSpace(string(out))
	made, err := e.Inspect(ctx, id)
	for i := range made {
		e.heedVolumes(ctx, []*Container{&made[i]}) // before those that are its own go with it
	}
	if removeErr := e.Remove(context.WithoutCancel(ctx), id); err != nil || removeErr != nil {
		return errors.Join(err, removeErr)
	}
	if found := Findings(made[0], Look{Joined: true}); len(found) > 0 {
		return &Refused{found}
	}
	return nil
}
