package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNotGuarded says that a container is there and no sidecar guards it.
var ErrNotGuarded = errors.New("no sidecar guards it")

// Sidecars lists every sidecar that runs, with what is behind it.
func (e *Engine) Sidecars(ctx context.Context) ([]Sidecar, error) {
	all, err := e.running(ctx)
	if err != nil {
		return nil, err
	}
	cars := sidecarsOf(all)
	e.heedJoined(ctx, cars)
	return cars, nil
}

// heedJoined asks what the volumes are of whoever is behind sidecars.
func (e *Engine) heedJoined(ctx context.Context, cars []Sidecar) {
	var joined []*Container
	for _, car := range cars {
		for i := range car.Joined {
			joined = append(joined, &car.Joined[i])
		}
	}
	e.heedVolumes(ctx, joined)
}

// running inspects every container that runs, paused or not. Podman's ps leaves out
// those that are paused unless it is asked for them.
func (e *Engine) running(ctx context.Context) ([]Container, error) {
	out, err := e.output(ctx, "ps", "--quiet", "--no-trunc", "--filter", "status=running", "--filter", "status=paused")
	if err != nil {
		return nil, err
	}
	containers, err := e.Inspect(ctx, strings.Fields(string(out))...)
	if errors.Is(err, ErrNoContainer) {
		return e.oneByOne(ctx, strings.Fields(string(out)))
	}
	return containers, err
}

// oneByOne inspects containers of which some have gone meanwhile.
func (e *Engine) oneByOne(ctx context.Context, ids []string) ([]Container, error) {
	var found []Container
	for _, id := range ids {
		c, err := e.Inspect(ctx, id)
		if err != nil && !errors.Is(err, ErrNoContainer) {
			return nil, err
		}
		found = append(found, c...)
	}
	return found, nil
}

// isSidecar says that a container is a sidecar. Its label is no evidence by itself,
// for an image's labels are its containers', and a sandbox that passes for its own
// sidecar would be told of every swap, and say that it was made. NET_ADMIN only the
// operator gives; a sandbox that has it can undo the guard in any case (B44).
func (c Container) isSidecar() bool {
	return c.Labels[LabelSidecar] != "" && c.Has("NET_ADMIN")
}

// sidecarsOf finds the sidecars among all containers and who is behind each.
func sidecarsOf(all []Container) []Sidecar {
	var cars []Sidecar
	for _, c := range all {
		if !c.isSidecar() {
			continue
		}
		car := Sidecar{Container: c}
		owner := c.ID
		if attached := c.Labels[labelAttached]; attached != "" {
			owner = attached
		}
		for _, other := range all {
			if other.ID != c.ID && (other.ID == owner || other.Owner() == owner) {
				car.Joined = append(car.Joined, other)
			}
		}
		cars = append(cars, car)
	}
	slices.SortFunc(cars, func(a, b Sidecar) int { return strings.Compare(a.Title(), b.Title()) })
	return cars
}

// Lookup gives the sidecar that name means: its own name or id, or those of a
// container behind it.
func (e *Engine) Lookup(ctx context.Context, name string) (Sidecar, error) {
	all, err := e.running(ctx)
	if err != nil {
		return Sidecar{}, err
	}
	car, err := lookup(all, name)
	e.heedJoined(ctx, []Sidecar{car})
	return car, err
}

// lookup is Lookup among all containers that run.
func lookup(all []Container, name string) (Sidecar, error) {
	cars := sidecarsOf(all)
	for _, car := range cars {
		if means(car.Container, name) {
			return car, nil
		}
	}
	switch called := titled(cars, name); len(called) {
	case 0:
	case 1:
		return called[0], nil
	default:
		return Sidecar{}, ambiguous(called, name)
	}
	for _, car := range cars {
		if slices.ContainsFunc(car.Joined, func(c Container) bool { return means(c, name) }) {
			return car, nil
		}
	}
	for _, c := range all {
		if means(c, name) {
			return Sidecar{}, fmt.Errorf("container %s: %w", name, ErrNotGuarded)
		}
	}
	return Sidecar{}, fmt.Errorf("%w that runs: %s", ErrNoContainer, name)
}

// titled are the sidecars that people call name.
func titled(cars []Sidecar, name string) []Sidecar {
	return slices.DeleteFunc(slices.Clone(cars), func(car Sidecar) bool { return car.Title() != name })
}

// ambiguous is why none of several sidecars of one title is taken: what is meant for
// one would be done to another. (Those of two Compose projects are called alike.)
func ambiguous(cars []Sidecar, name string) error {
	containers := make([]string, 0, len(cars))
	for _, car := range cars {
		containers = append(containers, car.Name)
	}
	return fmt.Errorf("%d sidecars are called %s: say which container is meant, of %s", len(cars), name, strings.Join(containers, ", "))
}

// means says whether a name or an id (its beginning, of 12 digits at least, as
// engines print it) is a container's.
func means(c Container, name string) bool {
	return c.Name == name || len(name) >= 12 && strings.HasPrefix(c.ID, name)
}

// Any is Lookup for a sidecar that may have ended, too.
func (e *Engine) Any(ctx context.Context, name string) (Sidecar, error) {
	car, err := e.Lookup(ctx, name)
	if !errors.Is(err, ErrNoContainer) {
		return car, err
	}
	out, listErr := e.output(ctx, "ps", "--all", "--quiet", "--no-trunc", "--filter", "label="+LabelSidecar+"="+name)
	if listErr != nil {
		return car, listErr
	}
	found, inspectErr := e.oneByOne(ctx, strings.Fields(string(out)))
	if inspectErr != nil {
		return car, inspectErr
	}
	var ended []Sidecar
	for _, c := range found {
		if c.isSidecar() {
			ended = append(ended, Sidecar{Container: c})
		}
	}
	switch len(ended) {
	case 0:
		return car, err
	case 1:
		return ended[0], nil
	}
	return car, ambiguous(ended, name)
}
