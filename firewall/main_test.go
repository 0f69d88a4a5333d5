package firewall

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/exeat/exeat/e2e/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	// inside says that this process is the test binary's own child, alone in fresh
	// namespaces, where tests may change the network.
	inside = "EXEAT_FIREWALL_TEST_NAMESPACE"
	// asAgent says that it is a sandboxed program, and names what it does.
	asAgent = "EXEAT_FIREWALL_TEST_AGENT"
	// agentGroup is the control group that agents are started in.
	agentGroup = "EXEAT_FIREWALL_TEST_GROUP"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asAgent) != "":
		os.Exit(agentMain(os.Getenv(asAgent), os.Args[1:]))
	case os.Getenv(inside) != "":
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// namespace runs the calling test (and nothing else) again in a fresh user,
// network and mount namespace, and returns true there. In the outer process it
// returns false when that is over; the test then has nothing left to do.
func namespace(t testing.TB) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	parallel(t)
	return again(t, exec.Command("/proc/self/exe", againArgs(t)...))
}

// grouped is namespace for tests that must tell us from an agent: we run in one
// control group and agents in another, which takes root and a control group
// file system (version 2).
func grouped(t testing.TB) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	parallel(t)
	root := cgroup2(t)
	ours, theirs := makeGroup(t, root, "ours"), makeGroup(t, root, "theirs")
	dir, err := os.Open(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe", againArgs(t)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	cmd.Env = append(os.Environ(), agentGroup+"="+theirs)
	return again(t, cmd)
}

// parallel lets tests run beside each other, since each is a process of its own.
func parallel(t testing.TB) {
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
}

func cgroup2(t testing.TB) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" && os.Getuid() == 0 {
			return f[1]
		}
	}
	require.Skip(t, "needs root and a cgroup2 file system")
	return ""
}

func makeGroup(t testing.TB, root, name string) string {
	t.Helper()
	dir := filepath.Join(root, fmt.Sprintf("exeat-test-%d-%s-%s", os.Getpid(), t.Name(), name))
	if err := os.Mkdir(dir, 0o755); err != nil {
		require.Skip(t, fmt.Sprintf("needs a control group of its own: %v", err))
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func againArgs(t testing.TB) []string {
	args := []string{"-test.v=" + fmt.Sprint(testing.Verbose()), fmt.Sprintf("-update=%v", *update)}
	if _, ok := t.(*testing.B); ok {
		return append(args, "-test.run=^$", "-test.bench=^"+t.Name()+"$")
	}
	return append(args, "-test.run=^"+t.Name()+"$")
}

func again(t testing.TB, cmd *exec.Cmd) bool {
	t.Helper()
	for _, tool := range []string{"nft", "ip", "nsenter", "setpriv"} {
		require.Tool(t, tool)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	// A skip inside is counted once, by the outer process; so is it a failure there.
	cmd.Env = append(cmd.Env, inside+"=1", "EXEAT_SKIPS=", "CI=", "EXEAT_CI=")
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET | syscall.CLONE_NEWNS
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	text := string(out)
	switch {
	case err != nil:
		t.Fatalf("in a namespace: %v\n%s", err, text)
	case strings.Contains(text, "--- SKIP"):
		require.Skip(t, text)
	case testing.Verbose():
		t.Log(text)
	}
	if _, ok := t.(*testing.B); ok {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "Benchmark") {
				fmt.Print("inside: ", line)
			}
		}
	}
	return false
}

// sh runs a command line of the shell, which must succeed, and returns what it printed.
func sh(t testing.TB, line string) string {
	t.Helper()
	out, err := exec.Command("/bin/sh", "-ec", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

func replace(s, old, new string) string { return strings.ReplaceAll(s, old, new) }

// fileName makes a file name of a sentence.
func fileName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		case r == ' ':
			return '_'
		}
		return -1
	}, s)
}

// waitFor gives something half a minute to become true.
func waitFor(t testing.TB, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("gave up waiting")
			return
		}
	}
}
