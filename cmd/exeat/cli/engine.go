//go:build !image

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/sandbox"
)

// engineEnv names the container engine where --engine does not.
const engineEnv = "EXEAT_ENGINE"

// engineFlag says which container engine is driven; the zero value leaves it to
// $EXEAT_ENGINE, or to which one answers.
type engineFlag struct{ engine string }

func (f *engineFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.engine, "engine", "", "the container engine, `docker|podman` (default: $"+engineEnv+", or the first that answers)")
	complete(cmd, "engine", "docker", "podman")
}

// named says that somebody asked for an engine.
func (f engineFlag) named() bool { return f.wanted() != "" }

func (f engineFlag) wanted() string { return cmp.Or(f.engine, os.Getenv(engineEnv)) }

func (f engineFlag) find(ctx context.Context) (*sandbox.Engine, error) {
	return sandbox.Find(ctx, f.wanted())
}

// guarded is a sandbox as a command reaches it: engine and car are nil for one
// that runs without a container engine.
type guarded struct {
	*client.Client
	engine *sandbox.Engine
	car    *sandbox.Sidecar
}

// open finds the sandbox called name: a local one, or else a container. Whoever
// has joined a container's sidecar is looked at, and what would undo the guard is
// complained of on stderr.
func (f engineFlag) open(ctx context.Context, stderr io.Writer, name string) (guarded, error) {
	if err := checkName(name); err != nil {
		return guarded{}, err
	}
	local := socketPath(name)
	if _, err := os.Lstat(local); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return guarded{Client: localClient(local)}, nil
	}
	engine, err := f.find(ctx)
	if errors.Is(err, sandbox.ErrNoEngine) && !f.named() {
		return guarded{Client: localClient(local)}, nil // which says that nobody answers there
	}
	if err != nil {
		return guarded{}, err
	}
	car, err := engine.Lookup(ctx, name)
	if errors.Is(err, sandbox.ErrNoContainer) || errors.Is(err, sandbox.ErrNotGuarded) {
		return guarded{}, fmt.Errorf("%w: no sandbox %s runs here, and of %s's containers: %w", client.ErrUnreachable, name, engine.Name(), err)
	}
	if err != nil {
		return guarded{}, err
	}
	warnOfFindings(stderr, car)
	return guarded{Client: engine.Client(car.ID), engine: engine, car: &car}, nil
}

// warnOfFindings names what would undo the guard, let pass or not.
func warnOfFindings(stderr io.Writer, car sandbox.Sidecar) {
	for _, f := range car.Findings() {
		fmt.Fprintf(stderr, "exeat: WARNING: the guard can be undone: %s\n", f)
	}
	for _, line := range car.Unsafe() {
		fmt.Fprintf(stderr, "exeat: warning: let pass by --unsafe: %s\n", line)
	}
}
