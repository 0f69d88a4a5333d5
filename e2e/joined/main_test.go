//go:build linux

package joined

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/require"
)

const (
	binEnv    = "EXEAT_E2E_BIN"
	refusedIn = "EXEAT_E2E_NO_USERNS"
)

// world is the little internet that all tests share; binary is the exeatd under
// test, scratch a directory for files.
var (
	world           *internet.World
	binary, scratch string
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain builds the binary outside, and runs the tests in a namespace inside.
func testMain(m *testing.M) int {
	if os.Getenv(binEnv) == "" {
		return outside(m)
	}
	if os.Getenv(refusedIn) != "" {
		return m.Run()
	}
	if _, _, err := internet.Isolate(); err != nil {
		return complain(err)
	}
	scratch = os.Getenv(binEnv)
	binary = filepath.Join(scratch, "exeatd")
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var err error
	if world, err = internet.Start(ctx, internet.Standard(), scratch); err != nil {
		return complain(fmt.Errorf("start the little internet: %w", err))
	}
	status := m.Run()
	if err := world.Close(); err != nil {
		return complain(fmt.Errorf("stop the little internet: %w", err))
	}
	return status
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "e2e/joined:", err)
	return 1
}

func outside(m *testing.M) int {
	dir, err := os.MkdirTemp("", "exeatd-e2e-")
	if err != nil {
		return complain(err)
	}
	defer os.RemoveAll(dir)
	// A worker with a uid of its own must get at the binary.
	if err := os.Chmod(dir, 0o755); err != nil {
		return complain(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/exeatd", "../../cmd/exeatd")
	// With cgo it could not drop privileges on threads that are not Go's.
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return complain(fmt.Errorf("build exeatd: %w", err))
	}
	if err := os.Setenv(binEnv, dir); err != nil {
		return complain(err)
	}
	_, status, err := internet.Isolate()
	if errors.Is(err, internet.ErrUserNamespaces) {
		// The tests then skip one by one, each saying why.
		if err := os.Setenv(refusedIn, err.Error()); err != nil {
			return complain(err)
		}
		return m.Run()
	}
	if err != nil {
		return complain(err)
	}
	return status
}

// needWorld skips where the namespace could not be made, or is too poor: exeatd
// needs uids besides one's own, and a control group.
func needWorld(t testing.TB) {
	t.Helper()
	if why := os.Getenv(refusedIn); why != "" {
		require.Skip(t, why)
	}
	require.Root(t)
}
