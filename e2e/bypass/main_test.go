//go:build linux

package bypass

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

const (
	// binVariable is the directory of the binaries under test.
	binVariable = "EXEAT_BYPASS_BIN"
	// refusedVariable says why there is no little internet.
	refusedVariable = "EXEAT_BYPASS_REFUSED"
	// labVariable makes the test binary the laboratory of a capability set.
	labVariable = "EXEAT_BYPASS_LAB"
	// capabilitiesVariable makes it give up all other capabilities, and execute its
	// arguments.
	capabilitiesVariable = "EXEAT_BYPASS_CAPABILITIES"
	// floodVariable makes it an agent that fills the connection table.
	floodVariable = "EXEAT_BYPASS_FLOOD"
)

// world is the little internet of the tests in a sealed sandbox.
var world *internet.World

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	switch {
	case os.Getenv(capabilitiesVariable) != "":
		fmt.Fprintln(os.Stderr, executeWith(os.Getenv(capabilitiesVariable), os.Args[1:]))
		return 125
	case os.Getenv(floodVariable) != "":
		return flood()
	case os.Getenv(labVariable) != "":
		return m.Run()
	case os.Getenv(binVariable) == "":
		return outside(m)
	}
	// The laboratories need the caller's own namespaces: they are run by the outer
	// process. In here is the little internet.
	if _, _, err := internet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "bypass:", err)
		return 1
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var err error
	if world, err = internet.Start(ctx, internet.Standard(), bin()); err != nil {
		fmt.Fprintln(os.Stderr, "bypass: start the little internet:", err)
		return 1
	}
	status := m.Run()
	if err := world.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "bypass: stop the little internet:", err)
		return 1
	}
	if err := goleak.Find(); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, "bypass: goroutines are left:", err)
		return 1
	}
	return status
}

// outside builds the binaries, runs the tests that need a world in one, and then
// the others here.
func outside(m *testing.M) int {
	dir, err := lab.Build("../../cmd/...", "../agent")
	if err != nil {
		fmt.Fprintln(os.Stderr, "bypass:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Setenv(binVariable, dir); err != nil {
		fmt.Fprintln(os.Stderr, "bypass:", err)
		return 1
	}
	_, status, err := internet.Isolate()
	if err != nil && !errors.Is(err, internet.ErrUserNamespaces) {
		fmt.Fprintln(os.Stderr, "bypass:", err)
		return 1
	}
	why := "they run in the little internet"
	if err != nil {
		why, status = err.Error(), 0
	}
	if err := os.Setenv(refusedVariable, why); err != nil {
		fmt.Fprintln(os.Stderr, "bypass:", err)
		return 1
	}
	return max(status, m.Run())
}

func bin() string { return os.Getenv(binVariable) }

func exeat() string { return filepath.Join(bin(), "exeat") }

// inWorld is true where the little internet is. Elsewhere the test has run
// already, or is skipped because there can be none.
func inWorld(t *testing.T) bool {
	t.Helper()
	switch why := os.Getenv(refusedVariable); why {
	case "":
		return world != nil
	case "they run in the little internet":
		return false
	default:
		require.Skip(t, why)
		return false
	}
}

// outsideWorld is true in the outer process.
func outsideWorld() bool { return world == nil }
