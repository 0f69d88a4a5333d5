//go:build linux

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// DialTimeout bounds every connection of the tests' own.
const DialTimeout = 5 * time.Second

// Namespace is the network namespace that a sandbox and a sidecar share. It is
// one end of a link; the little internet is at the other.
type Namespace struct {
	fd int
	// Far is the link's end at the little internet.
	Far  string
	Addr netip.Addr
	// Group is the sidecar's control group; nil is none.
	Group *os.File
}

// namespaces numbers them: their addresses and links differ.
var namespaces atomic.Uint32

// NewNamespace makes one, with addresses of both families. It skips where there
// is no root: exeatd needs uids besides one's own, and a control group.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	NeedWorld(t)
	require.Root(t)
	n := namespaces.Add(1)
	ns := &Namespace{Far: fmt.Sprintf("far%d", n), Addr: netip.AddrFrom4([4]byte{100, 64, byte(n), 2})}
	ready, end := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			ns.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
		<-end
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(end); unix.Close(ns.fd) })
	Sh(t, fmt.Sprintf(`
ip link add %[1]s type veth peer name eth0 netns /proc/%[3]d/fd/%[4]d
ip addr add 100.64.%[2]d.1/30 dev %[1]s; ip -6 addr add fd00:64:%[2]d::1/64 dev %[1]s nodad
ip link set %[1]s up`, ns.Far, n, os.Getpid(), ns.fd))
	t.Cleanup(func() { Sh(t, "ip link del "+ns.Far+" 2>/dev/null || true") })
	ns.Sh(t, fmt.Sprintf(`
echo '0 65534' >/proc/sys/net/ipv4/ping_group_range
ip link set lo up
ip addr add 100.64.%[1]d.2/30 dev eth0; ip -6 addr add fd00:64:%[1]d::2/64 dev eth0 nodad
ip link set eth0 up
ip route add default via 100.64.%[1]d.1; ip -6 route add default via fd00:64:%[1]d::1`, n))
	ns.Group = controlGroup(t, n)
	return ns
}

// controlGroup makes a control group for a sidecar, where there is a cgroup2.
func controlGroup(t testing.TB, n uint32) *os.File {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "cgroup2" {
			continue
		}
		dir := filepath.Join(f[1], fmt.Sprintf("exeatd-test-%d-%d", os.Getpid(), n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Logf("no control group of its own: %v", err)
			return nil
		}
		t.Cleanup(func() {
			// A process that is being reaped still counts.
			Eventually(t, "an empty control group", func() bool { return os.Remove(dir) == nil })
		})
		group, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { group.Close() })
		return group
	}
	return nil
}

// In runs f on a thread in the namespace: the sockets that it makes, and the
// processes that it starts, are there.
func (ns *Namespace) In(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		err := unix.Setns(ns.fd, unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// Sh runs lines of shell in the namespace, as the sandbox.
func (ns *Namespace) Sh(t testing.TB, lines string) string {
	t.Helper()
	var out []byte
	err := ns.In(func() (err error) {
		out, err = exec.Command("/bin/sh", "-ec", lines).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", lines, err, out)
	}
	return string(out)
}

// Sh runs lines of shell beside the little internet.
func Sh(t testing.TB, lines string) {
	t.Helper()
	if out, err := exec.Command("/bin/sh", "-ec", lines).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", lines, err, out)
	}
}

// Dial connects from the sandbox.
func (ns *Namespace) Dial(network, address string) (conn net.Conn, err error) {
	err = ns.In(func() (err error) {
		conn, err = (&net.Dialer{Timeout: DialTimeout}).Dial(network, address)
		return err
	})
	return conn, err
}

// Eventually waits for something to become true.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: waited for it in vain", what)
		}
	}
}
