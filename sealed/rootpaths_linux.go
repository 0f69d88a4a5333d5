package sealed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What root could reach the host through although its capabilities are few: its
// user id owns these files (bypass B79). The lists are those of an OCI runtime
// (moby, oci/defaults.go).
var (
	readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	maskedPaths   = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security",
	}
	deviceNodes = []string{"null", "zero", "full", "random", "urandom", "tty"}
)

// kernelFilesystems are interfaces to the kernel that are not the namespace's
// own; they are read-only for root wherever they are mounted.
var kernelFilesystems = map[string]bool{
	"sysfs": true, "cgroup": true, "cgroup2": true, "securityfs": true, "debugfs": true, "tracefs": true,
	"bpf": true, "configfs": true, "pstore": true, "efivarfs": true, "selinuxfs": true, "fusectl": true, "binfmt_misc": true,
}

// restrictRoot takes from root what a container takes from it.
func (v *view) restrictRoot() error {
	if v.Off.RootPaths {
		return nil
	}
	if err := v.freshDev(); err != nil {
		return err
	}
	for _, path := range readOnlyPaths {
		if err := bindReadOnly(path); err != nil {
			return err
		}
	}
	for _, path := range maskedPaths {
		if err := mask(path); err != nil {
			return err
		}
	}
	return v.readOnlyKernel()
}

func bindReadOnly(path string) error {
	err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, "")
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make %s read-only: %w", path, err)
	}
	return remountReadOnly(path, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
}

// remountReadOnly needs the mount's other flags: those that were set by a more
// privileged namespace may not be cleared.
func remountReadOnly(path string, flags uintptr) error {
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", path, err)
	}
	return nil
}

func mask(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return nil //nolint:nilerr // this kernel has no such file, or it is out of reach
	}
	if !st.IsDir() {
		return bind("/dev/null", path)
	}
	if err := mountTmpfs(path, "0555"); err != nil {
		return err
	}
	return remountReadOnly(path, unix.MS_NOSUID|unix.MS_NODEV)
}

// readOnlyKernel makes /sys and what else speaks to the kernel read-only.
func (v *view) readOnlyKernel() error {
	return v.makeReadOnly(func(m mountPoint) bool { return kernelFilesystems[m.fstype] || below(m.at, "/sys") })
}

// readOnlyCgroups keeps an ordinary user from those that are theirs (cgroups(7),
// delegation): by them every process of theirs is frozen or killed by one write,
// whatever the PID namespace: an orchestrator, say, that was about to narrow the policy.
func (v *view) readOnlyCgroups() error {
	if v.Off.RootPaths {
		return nil
	}
	return v.makeReadOnly(func(m mountPoint) bool { return m.fstype == "cgroup" || m.fstype == "cgroup2" })
}

func (v *view) makeReadOnly(which func(mountPoint) bool) error {
	for _, m := range v.mounts {
		if !which(m) || m.flags&unix.MS_RDONLY != 0 || v.isHidden(m.at) {
			continue
		}
		// EINVAL: something else was mounted over it, so that it cannot be reached.
		if err := remountReadOnly(m.at, m.flags); err != nil && !errors.Is(err, unix.EINVAL) && !outOfReach(err) {
			return err
		}
	}
	return nil
}

// noDevices makes every node useless, wherever there is one: a /dev of the host is
// mounted in other places too (for chroots, for containers), and root owns its disks.
func (v *view) noDevices() error {
	err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV})
	if !errors.Is(err, unix.ENOSYS) {
		return os.NewSyscallError("mount_setattr", err)
	}
	// Before Linux 5.12.
	for _, m := range v.mounts {
		err := unix.Mount("", m.at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV|m.flags, "")
		// EINVAL: something else was mounted over it, so that it cannot be reached.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("make the devices at %s useless: %w", m.at, err)
		}
	}
	return nil
}

// freshDev replaces /dev, where root owns the disks, by the nodes that programs
// need, a terminal multiplexer of its own, and shared memory of its own.
func (v *view) freshDev() error {
	held := map[string]int{}
	for _, name := range deviceNodes {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/"+name, unix.OPEN_TREE_CLONE|unix.O_CLOEXEC)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("hold /dev/%s: %w", name, err)
		}
		held[name] = fd
	}
	if err := v.noDevices(); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "size=64k,mode=0755"); err != nil {
		return fmt.Errorf("mount a fresh /dev: %w", err)
	}
	for name, fd := range held {
		if err := placeholder("/dev/"+name, false); err != nil {
			return err
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, "/dev/"+name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("give /dev/%s back: %w", name, err)
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
		"ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(target, filepath.Join("/dev", name)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"pts", "shm"} {
		if err := os.Mkdir(filepath.Join("/dev", dir), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("mount /dev/pts: %w", err)
	}
	if err := unix.Mount("shm", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	return nil
}
