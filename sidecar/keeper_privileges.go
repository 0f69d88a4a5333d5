//go:build linux

package sidecar

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errCgo says that the Go runtime cannot change every thread's privileges: in a
// binary with cgo some threads are not its own.
var errCgo = errors.New("this binary was built with cgo and cannot drop its privileges: build it with CGO_ENABLED=0")

// renounce leaves every thread, and whatever it executes, NET_ADMIN and nothing
// else, for good. With a uid that is not 0 processes started from here on may
// take it (as startAs does), though SETUID is gone.
func renounce(uid uint32) error {
	if uid != 0 {
		// The real id alone: files that we make stay those of uid 0 (setreuid(2)).
		if err := syscall.Setresuid(int(uid), -1, -1); err != nil {
			return fmt.Errorf("take uid %d (grant SETUID, which is given back before anything is let through): %w", uid, os.NewSyscallError("setresuid", err))
		}
	}
	// Lest executing anything as uid 0 bring the rest back (prctl(2)).
	if err := everyThread(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := dropBounding(); err != nil {
		return err
	}
	if err := everyThread(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if err := setCapabilities(1<<unix.CAP_NET_ADMIN, 0); err != nil {
		return err
	}
	return undumpable()
}

// dropBounding empties the bounding set, where we were granted that; where not,
// no_new_privs does the same for all that is executed.
func dropBounding() error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if c == unix.CAP_NET_ADMIN {
			continue
		}
		err := everyThread(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EPERM) {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINVAL) { // a kernel that has fewer
			return err
		}
	}
	return nil
}

// undumpable shuts our memory and descriptors to other processes of our uid
// (bypass.md B34).
func undumpable() error {
	return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

func setCapabilities(permitted, inheritable uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		data[i].Permitted = uint32(permitted >> (32 * i))
		data[i].Effective = data[i].Permitted
		data[i].Inheritable = uint32(inheritable >> (32 * i))
	}
	err := everyThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0, 0, 0)
	runtime.KeepAlive(&data)
	return err
}

// capabilities are what the calling thread may do.
func capabilities() (permitted uint64, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, os.NewSyscallError("capget", err)
	}
	return uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32, nil
}

// everyThread makes one system call on every thread: privileges belong to
// threads (capabilities(7)).
func everyThread(call, a1, a2, a3, a4, a5 uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(call, a1, a2, a3, a4, a5, 0)
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return errCgo
	}
	return os.NewSyscallError(fmt.Sprintf("system call %d", call), errno)
}

// startAs makes a process of ours run as uid, which renounce has made ours to
// take, with the one capability that is left.
func startAs(uid uint32) *syscall.SysProcAttr {
	// Should the keeper die its worker must not serve on.
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if uid != 0 {
		attr.Credential = &syscall.Credential{Uid: uid, Gid: uint32(os.Getgid()), NoSetGroups: true}
		attr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
	}
	return attr
}

// randomUID chooses a uid that nobody has: from the upper half of what our user
// namespace maps (user_namespaces(7)), far above any that is handed out.
func randomUID() (uint32, error) {
	f, err := os.Open("/proc/self/uid_map")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var top uint64
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var inside, outside, size uint64
		if _, err := fmt.Sscan(lines.Text(), &inside, &outside, &size); err != nil {
			return 0, fmt.Errorf("read /proc/self/uid_map: %w", err)
		}
		top = max(top, inside+size)
	}
	top = min(top, 1<<31)
	if top < 1024 {
		return 0, fmt.Errorf("the user namespace maps %d ids: none is left for a uid of our own", top)
	}
	n, err := rand.Int(rand.Reader, new(big.Int).SetUint64(top/2-1))
	if err != nil {
		return 0, err
	}
	// 65534 is everybody's nobody.
	if uid := uint32(top/2 + n.Uint64()); uid != 65534 {
		return uid, nil
	}
	return uint32(top / 2), nil
}
