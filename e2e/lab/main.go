//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/require"
)

const (
	binVariable     = "EXEAT_E2E_BIN"
	refusedVariable = "EXEAT_E2E_NO_USERNS"
)

// Main is the TestMain of a suite whose tests run in a namespace with the little
// internet.
type Main struct {
	// Name says in messages whose they are.
	Name string
	// Build are the packages whose programs are under test.
	Build []string
	// Outside, where not nil, is called before the namespace is entered.
	Outside func() error
	// Inside runs the tests: dir, which every user may enter, has the programs.
	Inside func(dir string, world *internet.World, run func() int) int
}

// Run builds the programs outside, and runs the tests in a namespace inside.
func (s Main) Run(m *testing.M) int {
	dir := os.Getenv(binVariable)
	if dir == "" {
		return s.outside(m)
	}
	if os.Getenv(refusedVariable) != "" {
		return m.Run()
	}
	if _, _, err := internet.Isolate(); err != nil {
		return s.complain(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	world, err := internet.Start(ctx, internet.Standard(), dir)
	if err != nil {
		return s.complain(fmt.Errorf("start the little internet: %w", err))
	}
	status := s.Inside(dir, world, m.Run)
	if err := world.Close(); err != nil {
		return s.complain(fmt.Errorf("stop the little internet: %w", err))
	}
	return status
}

func (s Main) complain(err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
	return 1
}

func (s Main) outside(m *testing.M) int {
	dir, err := Build(s.Build...)
	if err != nil {
		return s.complain(err)
	}
	defer os.RemoveAll(dir)
	if s.Outside != nil {
		if err := s.Outside(); err != nil {
			return s.complain(err)
		}
	}
	if err := os.Setenv(binVariable, dir); err != nil {
		return s.complain(err)
	}
	_, status, err := internet.Isolate()
	if errors.Is(err, internet.ErrUserNamespaces) {
		// The tests then skip one by one, each saying why.
		if err := os.Setenv(refusedVariable, err.Error()); err != nil {
			return s.complain(err)
		}
		return m.Run()
	}
	if err != nil {
		return s.complain(err)
	}
	return status
}

// Build builds programs into a directory that every user may enter, as make
// build does: with cgo they could not drop privileges on threads that are not
// Go's.
func Build(packages ...string) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "exeat-e2e-"); err != nil {
		return "", err
	}
	build := exec.Command("go", append([]string{"build", "-trimpath", "-o", dir + "/"}, packages...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := errors.Join(os.Chmod(dir, 0o755), build.Run()); err != nil {
		return "", errors.Join(fmt.Errorf("build %v: %w", packages, err), os.RemoveAll(dir))
	}
	return dir, nil
}

// NeedWorld skips where the namespace of the little internet could not be made.
func NeedWorld(t testing.TB) {
	t.Helper()
	if why := os.Getenv(refusedVariable); why != "" {
		require.Skip(t, why)
	}
}
