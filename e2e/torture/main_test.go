//go:build linux

package torture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/lab"
)

const (
	// tortureEnv makes the tests long: a factor from 0 (short) to 1 (all of it).
	tortureEnv = "EXEAT_TORTURE"
	// budgetEnv is how long the repetitions of one test may take.
	budgetEnv = "EXEAT_TORTURE_BUDGET"
	// seedEnv has the policies of an earlier run again, though not its moments.
	seedEnv = "EXEAT_TORTURE_SEED"
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

func TestMain(m *testing.M) {
	os.Exit(lab.Main{
		Name: "e2e/torture", Build: []string{"../../cmd/...", "./agent"},
		Outside: raiseDescriptors, Inside: inside,
	}.Run(m))
}

func inside(dir string, w *internet.World, run func() int) int {
	world, scratch = w, dir
	exeat, exeatd, agent = filepath.Join(dir, "exeat"), filepath.Join(dir, "exeatd"), filepath.Join(dir, "agent")
	stopUDP, err := serveDatagrams(":7")
	if err != nil {
		return complain(err)
	}
	began, commit := time.Now(), head()
	status := run()
	if err := errors.Join(stopUDP(), figures.write(began, commit, status)); err != nil {
		return complain(err)
	}
	return status
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "e2e/torture:", err)
	return 1
}

func raiseDescriptors() error {
	if err := wantDescriptors(descriptors); err != nil {
		fmt.Fprintln(os.Stderr, "e2e/torture: fewer descriptors than wanted:", err)
	}
	return nil
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
	t.Helper()
	if text := os.Getenv(budgetEnv); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", budgetEnv, err)
		}
		return d
	}
	return time.Duration(scaled(t, 15, 1500)) * time.Second
}

// seeded is what random choices begin with.
func seeded(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv(seedEnv)
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedEnv, err)
	}
	return seed
}
