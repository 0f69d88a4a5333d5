//go:build linux

package torture

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace that a sandbox and a sidecar share. It is
// one end of a link; the little internet is at the other.
type namespace struct {
	fd   int
	far  string // the link's end at the little internet
	addr netip.Addr
	// group is the sidecar's control group; nil is none.
	group *os.File
}

// newNamespace makes one, with addresses of both families.
func newNamespace(t testing.TB) *namespace {
	t.Helper()
	needWorld(t)
	n := namespaces.Add(1)
	ns := &namespace{far: fmt.Sprintf("far%d", n), addr: netip.AddrFrom4([4]byte{100, 64, byte(n), 2})}
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
	sh(t, fmt.Sprintf(`
ip link add %[1]s type veth peer name eth0 netns /proc/%[3]d/fd/%[4]d
ip addr add 100.64.%[2]d.1/30 dev %[1]s; ip -6 addr add fd00:64:%[2]d::1/64 dev %[1]s nodad
ip link set %[1]s up`, ns.far, n, os.Getpid(), ns.fd))
	t.Cleanup(func() { sh(t, "ip link del "+ns.far+" 2>/dev/null || true") })
	ns.sh(t, fmt.Sprintf(`
echo '0 65534' >/proc/sys/net/ipv4/ping_group_range
ip link set lo up
ip addr add 100.64.%[1]d.2/30 dev eth0; ip -6 addr add fd00:64:%[1]d::2/64 dev eth0 nodad
ip link set eth0 up
ip route add default via 100.64.%[1]d.1; ip -6 route add default via fd00:64:%[1]d::1`, n))
	ns.group = controlGroup(t, n)
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
		dir := filepath.Join(f[1], fmt.Sprintf("exeatd-torture-%d-%d", os.Getpid(), n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Logf("no control group of its own: %v", err)
			return nil
		}
		t.Cleanup(func() {
			// A process that is being reaped still counts.
			eventually(t, "an empty control group", func() bool { return os.Remove(dir) == nil })
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

// in runs f on a thread in the namespace: the sockets that it makes, and the
// processes that it starts, are there.
func (ns *namespace) in(f func() error) error {
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

// sh runs lines of shell in the namespace, as the sandbox.
func (ns *namespace) sh(t testing.TB, lines string) string {
	t.Helper()
	var out []byte
	err := ns.in(func() (err error) {
		out, err = exec.Command("/bin/sh", "-ec", lines).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", lines, err, out)
	}
	return string(out)
}

// sh runs lines of shell beside the little internet.
func sh(t testing.TB, lines string) {
	t.Helper()
	if out, err := exec.Command("/bin/sh", "-ec", lines).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", lines, err, out)
	}
}

// dial connects from the sandbox.
func (ns *namespace) dial(network, address string) (conn net.Conn, err error) {
	err = ns.in(func() (err error) {
		conn, err = (&net.Dialer{Timeout: dialTimeout}).Dial(network, address)
		return err
	})
	return conn, err
}
