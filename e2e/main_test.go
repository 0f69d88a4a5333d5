//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/require"
)

const (
	binEnv    = "EXEAT_E2E_BIN"
	refusedIn = "EXEAT_E2E_NO_USERNS"
	// otherUser is the ordinary user that root runs half of the tests as.
	otherUser = 65534
)

// world is the little internet that all tests share.
var world *internet.World

// binary is the exeat under test, agent the program of package agent; scratch is
// a directory that every user may enter.
var binary, agent, scratch string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain builds the binary outside, and runs the tests in a namespace inside.
func testMain(m *testing.M) int {
	if os.Getenv(binEnv) == "" {
		return outside(m)
	}
	if _, _, err := internet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	binary = filepath.Join(os.Getenv(binEnv), "exeat")
	agent = filepath.Join(os.Getenv(binEnv), "agent")
	scratch = os.Getenv(binEnv)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var err error
	if world, err = internet.Start(ctx, internet.Standard(), scratch); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: start the little internet:", err)
		return 1
	}
	status := m.Run()
	if err := world.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: stop the little internet:", err)
		return 1
	}
	return status
}

func outside(m *testing.M) int {
	dir, err := os.MkdirTemp("", "exeat-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "../cmd/...", "./agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build` does
	build.Stderr = os.Stderr
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build does
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: build the binaries:", err)
		return 1
	}
	if err := os.Setenv(binEnv, dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	_, status, err := internet.Isolate()
	if errors.Is(err, internet.ErrUserNamespaces) {
		// The tests then skip one by one, each saying why.
		if err := os.Setenv(refusedIn, err.Error()); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		return m.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return status
}

// needWorld skips where the namespace could not be made.
func needWorld(t *testing.T) {
	t.Helper()
	if why := os.Getenv(refusedIn); why != "" {
		require.Skip(t, why)
	}
}

// user says whom a sandbox is started by.
type user struct {
	name string
	attr *syscall.SysProcAttr
}

// users are whom this test run can start sandboxes as: the one it runs as and,
// when that is root, an ordinary user too.
func users() []user {
	self := user{"uid " + strconv.Itoa(os.Getuid()), &syscall.SysProcAttr{}}
	if os.Getuid() != 0 {
		return []user{self}
	}
	return []user{self, {"uid " + strconv.Itoa(otherUser), &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser},
	}}}
}
