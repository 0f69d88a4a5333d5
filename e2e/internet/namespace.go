//go:build linux

package internet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const insideEnv = "EXEAT_INTERNET_INSIDE"

// The prefixes that the namespace's loopback carries: RFC 5737 and RFC 3849
// documentation ranges, so that nothing outside can be meant by accident, and
// the two kinds of special address that names of the world point at.
var localPrefixes = []string{
	"203.0.113.0/24", "198.51.100.0/24", "192.0.2.0/24",
	"2001:db8::/64",
	"10.99.0.0/24", "169.254.169.254/32",
}

// ErrUserNamespaces says that this kernel or its settings refuse the caller a
// user namespace.
var ErrUserNamespaces = errors.New("user namespaces are refused")

// Isolate re-executes the running binary in a network namespace of its own
// (under a user namespace, so that no privilege is needed) whose loopback carries
// the world's addresses. In the child it returns inside == true once the network
// is up; the child keeps the caller's user and group. In the parent it waits and
// returns the child's exit status.
func Isolate() (inside bool, status int, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, 1, err
	}
	switch os.Getenv(insideEnv) {
	case "building":
		return true, 1, build(self)
	case "built":
		return true, 0, os.Unsetenv(insideEnv)
	}
	uids, gids := identityMaps()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"=building")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: uids,
		GidMappings: gids,
		// Root may run half of the tests as somebody else.
		GidMappingsEnableSetgroups: os.Getuid() == 0,
		Pdeathsig:                  syscall.SIGKILL,
		AmbientCaps:                []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_ADMIN},
	}
	// The parent-death signal follows the thread, not the process (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EACCES) {
			return false, 125, fmt.Errorf("%w: %w", ErrUserNamespaces, err)
		}
		return false, 125, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGTERM {
				err = cmd.Process.Signal(s)
			}
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if s := exit.Sys().(syscall.WaitStatus); s.Signaled() {
					return false, 128 + int(s.Signal()), nil
				}
				return false, exit.ExitCode(), nil
			}
			return false, 0, err
		}
	}
}

// identityMaps maps every id that the caller may map to itself: root maps all,
// anybody else their own.
func identityMaps() (uids, gids []syscall.SysProcIDMap) {
	if os.Getuid() == 0 {
		all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
		return all, all
	}
	return []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		[]syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
}

func setUpLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, p := range localPrefixes {
		_, dst, err := net.ParseCIDR(p)
		if err != nil {
			return err
		}
		route := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL,
			Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("local route %s: %w", p, err)
		}
	}
	// A local route is enough to receive on an IPv6 address, not to bind to it.
	bound := &net.IPNet{IP: Resolver6.Addr().AsSlice(), Mask: net.CIDRMask(128, 128)}
	return netlink.AddrAdd(lo, &netlink.Addr{IPNet: bound, Flags: unix.IFA_F_NODAD})
}

// build sets the network up and executes the binary once more, by when no thread
// of it has a capability that an ordinary user's programs would inherit.
func build(self string) error {
	// Capabilities belong to threads (capabilities(7)), and so does execve.
	runtime.LockOSThread()
	if err := setUpLoopback(); err != nil {
		return fmt.Errorf("set up the namespace's loopback: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0o644); err != nil {
		return fmt.Errorf("open the low ports to everybody: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_CAP_AMBIENT)", err)
	}
	if err := os.Setenv(insideEnv, "built"); err != nil {
		return err
	}
	return os.NewSyscallError("execve", unix.Exec(self, os.Args, os.Environ()))
}
