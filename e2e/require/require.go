package require

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// skipsVariable names the file that collects the skips for `make test`.
const skipsVariable = "EXEAT_SKIPS"

// Tool gives the path of a program that the test drives.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	// An ordinary user's PATH leaves out where nft, ip and tcpdump are.
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path
		}
	}
	Skip(t, name+" is not installed (scripts/install-test-tools)")
	return ""
}

// Root skips the test where it does not run as uid 0.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root")
	}
}

// Skip ends the test as skipped, or as failed under CI.
func Skip(t testing.TB, why string) {
	t.Helper()
	if InCI() {
		t.Fatalf("skipped, which is a failure under CI: %s", why)
	}
	line := fmt.Sprintf("%s: %s\n", t.Name(), why)
	fmt.Fprint(os.Stderr, "SKIP "+line)
	if err := record(line); err != nil {
		t.Errorf("record the skip: %v", err)
	}
	t.Skip(why)
}

// InCI says whether a skip is a failure.
func InCI() bool {
	for _, name := range []string{"EXEAT_CI", "CI"} {
		if on, err := strconv.ParseBool(strings.TrimSpace(os.Getenv(name))); err == nil && on {
			return true
		}
	}
	return false
}

// record adds a line to the list of skips. Tests of several packages append to
// it at once, which O_APPEND makes safe.
func record(line string) error {
	path := os.Getenv(skipsVariable)
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(line); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
