//go:build linux

package sealed

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/exeat/exeat/e2e/require"
)

const (
	// probeVariable makes the test binary carry out one of the probes instead.
	probeVariable = "EXEAT_SEALED_PROBE"
	// binaryVariable is where the test binary can be executed by everybody.
	binaryVariable = "EXEAT_SEALED_BINARY"
	// ordinaryVariable says that root runs the tests once more as somebody else.
	ordinaryVariable = "EXEAT_SEALED_ORDINARY"
)

// nobody is the ordinary user that root becomes.
const nobody = 65534

func TestMain(m *testing.M) {
	Init()
	if name := os.Getenv(probeVariable); name != "" {
		os.Exit(probes()[name](os.Args[1:]))
	}
	// Else every probe lasts a second longer under the race detector.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

// runTests makes a copy of the binary that an ordinary user can execute: that
// of `go test` lies where only its owner may look.
func runTests(m *testing.M) int {
	flag.Parse()
	if os.Getenv(binaryVariable) == "" {
		dir, err := os.MkdirTemp("", "exeat-sealed-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if err := copyBinary(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	status := m.Run()
	if status == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			return 1
		}
	}
	return status
}

func copyBinary(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	path := filepath.Join(dir, "sealed.test")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if err := to.Close(); err != nil {
		return err
	}
	return os.Setenv(binaryVariable, path)
}

// TestAsAnOrdinaryUser runs all tests again without root's privileges, but for those
// that begin with TestAsRoot.
func TestAsAnOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("this is an ordinary user already")
		return
	}
	home, err := os.MkdirTemp("", "exeat-ordinary-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	if err := os.Chown(home, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Getenv(binaryVariable), "-test.count=1", fmt.Sprintf("-test.v=%v", testing.Verbose()), "-test.skip=^TestAs(AnOrdinaryUser$|Root)")
	cmd.Dir = home
	cmd.Env = append(environmentWithout("SUDO_UID", "XDG_RUNTIME_DIR"), "HOME="+home, "TMPDIR="+home, ordinaryVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as uid %d: %v\n%s", nobody, err, out)
	}
	if testing.Verbose() {
		t.Logf("as uid %d:\n%s", nobody, out)
	}
}

func environmentWithout(names ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, name)
	})
}

// result is what became of a command in a sandbox.
type result struct {
	out      string
	status   int
	warnings []string
}

// run runs the spec to its end.
func run(t testing.TB, spec Spec) result {
	t.Helper()
	require.UserNamespaces(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if spec.Stdin == nil {
		spec.Stdin = null
	}
	spec.Stdout, spec.Stderr = w, w
	read := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		read <- string(b)
	}()
	s, err := Start(t.Context(), spec)
	w.Close()
	if err != nil {
		<-read
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	status, err := s.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return result{out: <-read, status: status, warnings: s.Warnings()}
}

// probe is a spec that runs one of the probes inside.
func probe(name string, args ...string) Spec {
	return Spec{
		Args: append([]string{os.Getenv(binaryVariable)}, args...),
		Env:  append(os.Environ(), probeVariable+"="+name),
	}
}

func shell(script string) Spec { return Spec{Args: []string{"/bin/sh", "-c", script}} }

func (s Spec) without(d defences) Spec {
	s.off = d
	return s
}

// probes are the programs that the tests run, inside sandboxes and beside them.
func probes() map[string]func([]string) int {
	return map[string]func([]string) int{
		"connect":     probeConnect,
		"write-fd":    probeWriteFD,
		"kill":        probeKill,
		"family":      probeFamily,
		"io-uring":    probeIOURing,
		"request-key": probeRequestKey,
		"i386":        probeI386,
		"x32":         probeX32,
		"ioctl":       probeIoctl,
		"open":        probeOpen,
		"listen":      probeListen,
		"sysv":        probeSysV,
		"tcp":         probeTCP,
		"udp":         probeUDP,
		"ping":        probePing,
		"loopback":    probeLoopback,
		"engine":      probeEngine,
		"forbidden":   probeForbidden,
		"shell":       probeShell,
		"dumpable":    probeDumpable,
	}
}
