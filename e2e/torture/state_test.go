//go:build linux

package torture

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/policy"
)

// TestAStateThatCannotBeTrustedDeniesEverything, says so, and can be swapped away
// from.
func TestAStateThatCannotBeTrustedDeniesEverything(t *testing.T) {
	lab.NeedWorld(t)
	require.Root(t)
	target := targetsOf("joined", 8, 3)[8].addr.String()
	whole := keptState(t, target)
	for name, test := range map[string]struct {
		damage func(path string) error
		says   string
	}{
		"torn":                  {func(path string) error { return os.WriteFile(path, whole[:len(whole)*2/3], 0o600) }, "torn"},
		"empty":                 {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "torn"},
		"edited":                {func(path string) error { return replaceIn(path, whole, "no-network", "public") }, "checksum"},
		"from the future":       {func(path string) error { return replaceIn(path, whole, `"version":1`, `"version":2`) }, "version 2"},
		"unreadable":            {func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		"a link to nowhere":     {func(path string) error { return os.Symlink("/nowhere/at/all", path) }, "state"},
		"larger than any state": {func(path string) error { return enlarge(path) }, "more than any state has"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := test.damage(filepath.Join(dir, "state.json")); err != nil {
				t.Fatal(err)
			}
			s := prepare(t, "--state", dir, "--allow", target)
			s.Begin(t)
			lab.Eventually(t, "an answer", func() bool { _, err := s.Policy(t.Context()); return err == nil })
			state, err := s.Policy(t.Context())
			if err != nil || state.Policy.Mode != policy.ModeNoNetwork {
				t.Errorf("in force is %+v, %v; want no-network", state.Policy, err)
			}
			s.refused(t, "tcp", target+":7")
			// The log is written in its own time.
			lab.Eventually(t, "a log that says that everything is denied, and why: "+test.says, func() bool {
				log := s.Stdout.String()
				return strings.Contains(log, "everything is denied") && strings.Contains(log, test.says)
			})
			if _, err := s.Swap(t.Context(), api.SwapRequest{Policy: parse(t, written("allowlist", []string{target}, nil))}); err != nil {
				t.Fatal(err)
			}
			s.reaches(t, target+":7")
			s.Kill(t)
			s.Begin(t)
			s.AwaitReady(t)
			s.reaches(t, target+":7")
		})
	}
}

// keptState is the file that a sidecar keeps.
func keptState(t *testing.T, target string) []byte {
	t.Helper()
	dir := t.TempDir()
	s := prepare(t, "--state", dir, "--allow", target)
	s.Begin(t)
	s.AwaitReady(t)
	s.Kill(t)
	data, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// replaceIn writes an edited copy, which must differ or be of another policy.
func replaceIn(path string, whole []byte, from, to string) error {
	edited := strings.Replace(string(whole), from, to, 1)
	if edited == string(whole) {
		edited = strings.Replace(edited, `"generation":1`, `"generation":9`, 1)
	}
	if edited == string(whole) {
		return fmt.Errorf("no %q in %s", from, whole)
	}
	return os.WriteFile(path, []byte(edited), 0o600)
}

func enlarge(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := f.Truncate(300 << 20); err != nil {
		return err
	}
	return f.Close()
}

// reaches says that what is sent comes back.
func (s *sidecar) reaches(t testing.TB, address string) {
	t.Helper()
	conn, err := s.Dial("tcp", address)
	if err == nil {
		defer conn.Close()
		_, err = conn.Write([]byte("ping"))
	}
	if err == nil {
		_, err = conn.Read(make([]byte, 4))
	}
	if err != nil {
		t.Errorf("%s: %v", address, err)
	}
}

// TestAFullDiskRefusesTheSwapAndKeepsThePolicy: nothing changes, now or at the
// restart.
func TestAFullDiskRefusesTheSwapAndKeepsThePolicy(t *testing.T) {
	lab.NeedWorld(t)
	require.Root(t)
	targets := targetsOf("joined", 8, 3)
	first, second := targets[8].addr.String(), targets[9].addr.String()
	dir := t.TempDir()
	s := prepare(t, "--state", dir, "--allow", first)
	// A disk of a few pages, in a mount namespace of the sidecar's own.
	unshare := require.Tool(t, "unshare")
	s.Wrap = []string{unshare, "-m", "sh", "-ec", `mount -t tmpfs -o size=16k none "$0"; exec "$@"`, dir}
	s.Begin(t)
	s.AwaitReady(t)
	large := []string{second}
	for i := range 2000 {
		large = append(large, fmt.Sprintf("filler-%d.torture.test", i))
	}
	_, err := s.Swap(t.Context(), api.SwapRequest{Policy: parse(t, written("allowlist", large, nil))})
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("swap on a full disk: %v, want it refused", err)
	}
	check := func(when string) {
		t.Helper()
		state, err := s.Policy(t.Context())
		if err != nil || len(state.Policy.Allowed) != 1 || state.Policy.Allowed[0].String() != first {
			t.Errorf("%s: in force is %+v, %v; want %s alone", when, state.Policy, err, first)
		}
		s.reaches(t, first+":7")
		s.refused(t, "tcp", second+":7")
	}
	check("after the swap was refused")
	result, err := s.Swap(t.Context(), api.SwapRequest{Policy: parse(t, written("allowlist", []string{first}, nil))})
	if err != nil {
		t.Errorf("a swap that fits: %v", err)
	}
	pid := s.Worker(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "another worker", func() bool {
		status, err := s.Status(t.Context())
		return err == nil && status.PID != pid && status.Generation >= result.Generation
	})
	s.AwaitReady(t)
	check("after a restart of the worker")
}
