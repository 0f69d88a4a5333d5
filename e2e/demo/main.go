//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/exeat/exeat/e2e/internet"
)

const (
	statusUsage   = 2
	statusRefused = 125 // as `exeat run`
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the demo, or with the arguments `agent CA-FILE` the agent in it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 2 && args[0] == "agent" {
		if err := runAgent(args[1], stdin, stdout); err != nil {
			fmt.Fprintln(stderr, "agent:", err)
			return 1
		}
		return 0
	}
	if len(args) != 1 {
		fmt.Fprintln(stderr, "usage: exeat-demo PATH-OF-EXEAT")
		return statusUsage
	}
	inside, status, err := internet.Isolate()
	switch {
	case errors.Is(err, internet.ErrUserNamespaces):
		fmt.Fprintf(stderr, "demo: this machine keeps user namespaces from ordinary users (%v).\nRun it as root: sudo make demo\n", err)
		return statusRefused
	case err != nil:
		fmt.Fprintln(stderr, "demo:", err)
		return 1
	case !inside:
		return status
	}
	ok, err := demonstrate(ctx, args[0], stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "demo:", err)
		return 1
	}
	if !ok {
		return 1
	}
	return 0
}

// demonstrate plays the script and says whether all went as expected.
func demonstrate(ctx context.Context, exeat string, stdout, stderr io.Writer) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if exeat, err = filepath.Abs(exeat); err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "exeat-demo-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The agent may be somebody else: under sudo exeat gives up root.
	if err := os.Chmod(dir, 0o755); err != nil {
		return false, err
	}
	world, err := internet.Start(ctx, internet.Standard(), dir)
	if err != nil {
		return false, fmt.Errorf("start the little internet: %w", err)
	}
	defer func() { err = errors.Join(err, world.Close()) }()

	s, err := openStage(ctx, stage{exeat: exeat, dir: dir, ca: world.CAFile(), out: stdout, err: stderr})
	if err != nil {
		return false, err
	}
	ok, err = s.play(ctx)
	return ok, errors.Join(err, s.close())
}
