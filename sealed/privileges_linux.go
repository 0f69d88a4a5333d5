package sealed

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setupCapabilities are what process 1 needs in its own namespaces to build
// them. It has lost them before CMD starts.
var setupCapabilities = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP}

// rootCapabilities are Docker's default less NET_RAW and MKNOD; all of them are
// over the sandbox's own namespaces alone.
const rootCapabilities uint64 = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FSETID | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE |
	1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_KILL | 1<<unix.CAP_AUDIT_WRITE

// renounce gives up, for the calling thread and what it starts, everything but
// keep, and the ways to get anything back. Process 1 is hidden from the
// processes beside it: they have its user id.
func renounce(keep uint64, off defences) error {
	if !off.Dumpable {
		if err := Undumpable(); err != nil {
			return err
		}
	}
	if !off.Capabilities {
		if err := dropBounding(keep); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_NO_NEW_PRIVS)", err)
	}
	if !off.Seccomp {
		if err := installFilter(); err != nil {
			return err
		}
	}
	if off.Capabilities {
		return nil
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_CAP_AMBIENT_CLEAR_ALL)", err)
	}
	return setCapabilities(keep)
}

// Undumpable shuts the process's memory, descriptors and environment to other
// processes of the same user (ptrace(2), proc(5)). The engine calls it for itself
// after Start, which could not map the sandbox's users from a hidden process.
func Undumpable() error {
	return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

func dropBounding(keep uint64) error {
	last, err := lastCapability()
	if err != nil {
		return err
	}
	for c := range last + 1 {
		if keep&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, os.NewSyscallError("prctl(PR_CAPBSET_DROP)", err))
		}
	}
	return nil
}

func lastCapability() (int, error) {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// setCapabilities sets permitted and effective on every thread of process 1
// where the Go runtime can do that (not in a binary with cgo); else on this one,
// which is the one that starts CMD.
func setCapabilities(keep uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(keep), Permitted: uint32(keep)},
		{Effective: uint32(keep >> 32), Permitted: uint32(keep >> 32)},
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0)
	runtime.KeepAlive(&data)
	if errors.Is(errno, syscall.ENOTSUP) {
		return os.NewSyscallError("capset", unix.Capset(&header, &data[0]))
	}
	if errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}
