package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hostCases attack the processes beside us.
func hostCases() []Case {
	return []Case{
		{ID: "B73", Attack: "memory, environment and descriptors of the engine", Expected: "no such process is visible, or it is shut", Own: OwnProcesses, try: robProcesses},
		{ID: "B73", Attack: "a process of the host's, seen in /proc", Expected: "only the sandbox's own processes are there", Own: OwnProcesses, try: hostProcesses},
	}
}

// engines are the processes of the enforcement that we can see, by the names
// that they run under.
func engines() []int {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var found []int
	for _, path := range names {
		line, err := os.ReadFile(path)
		pid, bad := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		name, _, _ := strings.Cut(string(line), "\x00")
		if err == nil && bad == nil && pid != os.Getpid() && strings.HasPrefix(filepath.Base(name), "exeat") {
			found = append(found, pid)
		}
	}
	return found
}

// robProcesses tries every way into each process of the enforcement.
func robProcesses(*attempt) sight {
	pids := engines()
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		for _, name := range []string{"mem", "environ", "maps"} {
			f, err := os.Open(dir + "/" + name)
			if err != nil {
				continue
			}
			// environ and maps are opened by anyone, and say no when they are read.
			_, err = f.Read(make([]byte, 1))
			if err := errors.Join(err, f.Close()); err == nil {
				return leak("%s/%s can be read", dir, name)
			}
		}
		if opened := openDescriptor(dir); opened != "" {
			return leak("%s can be followed", opened)
		}
		if err := stealDescriptor(pid); err == nil {
			return leak("a descriptor of process %d was taken (pidfd_getfd)", pid)
		}
		if err := trace(pid); err == nil {
			return leak("process %d was traced", pid)
		}
	}
	return held("%d processes of exeat in sight, each shut", len(pids))
}

// openDescriptor gives one that can be followed to what it is open on. Their
// numbers alone are no secret.
func openDescriptor(dir string) string {
	links, err := filepath.Glob(dir + "/fd/*")
	if err != nil {
		return ""
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			return link + " (" + to + ")"
		}
	}
	return ""
}

func stealDescriptor(pid int) error {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdGetfd(p, 0, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	return errors.Join(err, unix.Close(p))
}

// trace attaches for a moment.
func trace(pid int) error {
	runtime.LockOSThread() // ptrace belongs to a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		return err
	}
	return errors.Join(unix.PtraceInterrupt(pid), unix.PtraceDetach(pid))
}

// hostProcesses says whether process 1 is of our own PID namespace.
func hostProcesses(*attempt) sight {
	comm, err := os.ReadFile("/proc/1/comm")
	if err != nil {
		return held("/proc/1: %v", err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return unproven(err.Error(), "/proc cannot be listed")
	}
	for _, dir := range dirs {
		// Kernel threads are seen from the host's own namespace alone: [kthreadd] is 2.
		if name, err := os.ReadFile(dir + "/comm"); err == nil && strings.TrimSpace(string(name)) == "kthreadd" {
			return leak("the host's processes are in sight: %d of them", len(dirs))
		}
	}
	return held("%d processes, the first is %s", len(dirs), strings.TrimSpace(string(comm)))
}

// rootCases are what root of a sandbox could break out of it by; an ordinary
// user is refused by the files' modes.
func rootCases() []Case {
	var cases []Case
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
		"/sys/fs/cgroup/cgroup.procs", "/dev/mem", "/dev/kmsg", "/dev/vhost-vsock", "/dev/net/tun",
	} {
		cases = append(cases, Case{
			ID: "B79", Attack: path + " opened for writing", Expected: "refused, read-only or not there", Own: OwnFiles,
			try: func(*attempt) sight { return openForWriting(path) },
		})
	}
	return append(cases, Case{ID: "B79", Attack: "a device node made", Expected: "not without MKNOD", Own: OwnCapabilities, try: makeNode})
}

// openForWriting opens, and writes nothing.
func openForWriting(path string) sight {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return held("open: %v", err)
	}
	if err := unix.Close(fd); err != nil {
		return unproven(err.Error(), "the descriptor is gone")
	}
	if path == "/dev/net/tun" {
		return unproven("opened", "it makes no link without NET_ADMIN: see B21")
	}
	return leak("opened")
}

func makeNode(*attempt) sight {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("exeat-probe-%d", os.Getpid()))
	err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))
	if err != nil {
		return held("mknod: %v", err)
	}
	err = unix.Unlink(path)
	return unproven(fmt.Sprintf("made (and removed: %v)", err == nil), "whether it can be opened is up to the mount and the device cgroup")
}
