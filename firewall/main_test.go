package firewall

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// inside says that this process is the test binary's own child, alone in fresh
// namespaces, where tests may change the network.
const inside = "EXEAT_FIREWALL_TEST_NAMESPACE"

func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
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
	kind := "-test.run"
	if _, ok := t.(*testing.B); ok {
		kind = "-test.run=^$ -test.bench"
	}
	args := strings.Fields(kind)
	args[len(args)-1] += "=^" + t.Name() + "$"
	cmd := exec.Command("/proc/self/exe", append(args, "-test.v="+fmt.Sprint(testing.Verbose()), fmt.Sprintf("-update=%v", *update))...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
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
		t.Skip(text)
	case testing.Verbose():
		t.Log(text)
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
