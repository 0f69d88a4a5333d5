//go:build linux

package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/require"
)

const (
	binEnv    = "EXEAT_E2E_BIN"
	refusedIn = "EXEAT_E2E_NO_USERNS"
	// tortureEnv makes the tests long: a factor from 0 (short) to 1 (all of it).
	tortureEnv = "EXEAT_TORTURE"
)

// world is the little internet that all tests share; exeat, exeatd and agent are
// the binaries, scratch a directory that every user may enter.
var (
	world                         *internet.World
	exeat, exeatd, agent, scratch string
)

// The first thread stays in the namespace of the tests: that is where a peer of a
// control socket is looked for (/proc/PID/ns/net).
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain builds the binaries outside, and runs the tests in a namespace inside.
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
	exeat, exeatd, agent = filepath.Join(scratch, "exeat"), filepath.Join(scratch, "exeatd"), filepath.Join(scratch, "agent")
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var err error
	if world, err = internet.Start(ctx, internet.Standard(), scratch); err != nil {
		return complain(fmt.Errorf("start the little internet: %w", err))
	}
	stopUDP, err := serveDatagrams(":7")
	if err != nil {
		return complain(err)
	}
	status := m.Run()
	if err := errors.Join(stopUDP(), world.Close()); err != nil {
		return complain(fmt.Errorf("stop the little internet: %w", err))
	}
	return status
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "e2e/torture:", err)
	return 1
}

func outside(m *testing.M) int {
	dir, err := os.MkdirTemp("", "exeat-torture-")
	if err != nil {
		return complain(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return complain(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "../../cmd/...", "./agent")
	// With cgo exeatd could not drop privileges on threads that are not Go's.
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return complain(fmt.Errorf("build the binaries: %w", err))
	}
	if err := os.Setenv(binEnv, dir); err != nil {
		return complain(err)
	}
	if err := wantDescriptors(descriptors); err != nil {
		fmt.Fprintln(os.Stderr, "e2e/torture: fewer descriptors than wanted:", err)
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

// descriptors are wanted for ten thousand flows, whose three parties are children
// of this process: the proxy's four each are the most.
const descriptors = 65536

// wantDescriptors raises the limit, which only root outside can.
func wantDescriptors(n uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max >= n && limit.Cur >= n {
		return nil
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: max(n, limit.Max)})
}

// needWorld skips where the namespace could not be made.
func needWorld(t testing.TB) {
	t.Helper()
	if why := os.Getenv(refusedIn); why != "" {
		require.Skip(t, why)
	}
}

// scaled is short, or long times the factor of EXEAT_TORTURE.
func scaled(t testing.TB, short, long int) int {
	t.Helper()
	text := os.Getenv(tortureEnv)
	if text == "" {
		return short
	}
	factor, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatalf("%s: %v", tortureEnv, err)
	}
	return max(short, int(float64(long)*factor))
}

// budget is how long the repetitions of one test may take, lest a slow machine
// take hours where it is not asked to.
func budget(t testing.TB) time.Duration {
	return time.Duration(scaled(t, 15, 7200)) * time.Second
}
