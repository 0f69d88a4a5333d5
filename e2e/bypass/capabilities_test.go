//go:build linux

package bypass

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// capabilitySet is what a container's root may do.
type capabilitySet struct {
	name string
	keep uint64
}

const dockerDefault uint64 = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FSETID | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_MKNOD | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETFCAP |
	1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_KILL | 1<<unix.CAP_AUDIT_WRITE

// capabilitySets are those that sandboxes have in production.
func capabilitySets() []capabilitySet {
	return []capabilitySet{
		{"none", 0},
		{"Docker's default", dockerDefault},
		{"Docker's default less NET_RAW", dockerDefault &^ (1 << unix.CAP_NET_RAW)},
	}
}

func (s capabilitySet) raw() bool { return s.keep&(1<<unix.CAP_NET_RAW) != 0 }

// executeWith takes every capability but those of the mask out of the bounding
// set, and executes the command: root's new ones are those that are left.
func executeWith(mask string, args []string) error {
	keep, err := strconv.ParseUint(mask, 16, 64)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(last)))
	if err != nil {
		return err
	}
	for c := range n + 1 {
		if keep&(1<<c) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", c, err)
			}
		}
	}
	if err := os.Unsetenv(capabilitiesVariable); err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", args[0], syscall.Exec(args[0], args, os.Environ()))
}
