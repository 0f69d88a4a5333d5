package probe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketCases try ways out that do not touch the network namespace.
func socketCases() []Case {
	cases := []Case{
		{ID: "B18", Attack: "AF_VSOCK", Expected: "refused by the filter of system calls", Own: OwnFilter, try: family(unix.AF_VSOCK, unix.SOCK_STREAM)},
		{ID: "B19", Attack: "UDP by io_uring", Expected: "refused, as from any socket", Own: OwnFilter, try: ringSend},
		{ID: "B70", Attack: "the control socket", Expected: "not there, or refused", Own: OwnFiles, try: unixSockets(controlSockets)},
		{ID: "B71", Attack: "sockets of engines, buses and agents of the host", Expected: "not there, or refused", Own: OwnFiles, try: unixSockets(hostSockets)},
		{ID: "B72", Attack: "name services of the host", Expected: "not there, or refused", Own: OwnFiles, try: unixSockets(nameSockets)},
		{ID: "B74", Attack: "io_uring", Expected: "refused by the filter of system calls", Own: OwnFilter, try: ringSetUp},
		{ID: "B75", Attack: "rules from a nested user namespace", Expected: "it has no say over the outer network", Own: OwnCapabilities, try: nested},
		{ID: "B76", Attack: "an inherited descriptor that leads out", Expected: "none beside standard input and outputs", Own: OwnProcesses, try: inherited},
		{ID: "B78", Attack: "a keystroke forged on the terminal", Expected: "refused by the filter of system calls", Disturbs: true, Own: OwnFilter, try: forgeKey},
	}
	for _, f := range []struct {
		name         string
		family, kind int
	}{
		{"AF_PACKET", unix.AF_PACKET, unix.SOCK_RAW},
		{"AF_XDP", unix.AF_XDP, unix.SOCK_RAW},
		{"AF_ALG", unix.AF_ALG, unix.SOCK_SEQPACKET},
		{"AF_KEY", unix.AF_KEY, unix.SOCK_RAW},
		{"AF_TIPC", unix.AF_TIPC, unix.SOCK_SEQPACKET},
		{"AF_RDS", unix.AF_RDS, unix.SOCK_SEQPACKET},
		{"AF_SMC", unix.AF_SMC, unix.SOCK_STREAM},
		{"AF_BLUETOOTH", unix.AF_BLUETOOTH, unix.SOCK_RAW},
		{"AF_CAN", unix.AF_CAN, unix.SOCK_RAW},
		{"AF_QIPCRTR", unix.AF_QIPCRTR, unix.SOCK_DGRAM},
	} {
		cases = append(cases, Case{
			ID: "B74", Attack: "a socket of " + f.name, Expected: "refused", Own: OwnFilter,
			try: family(f.family, f.kind),
		})
	}
	return cases
}

// family makes a socket of a family, and does nothing with it.
func family(family, kind int) func(*attempt) sight {
	return func(a *attempt) sight {
		err := a.withSocket(family, kind, 0, func(int) error { return nil })
		if err == nil {
			if a.seccomp && a.link == nil {
				return leak("a socket was made, of a family that no namespace holds")
			}
			return unproven("a socket was made", "whether something listens beyond it cannot be told from here")
		}
		return a.sent(err)
	}
}

// unixSockets tries to connect to each path that find gives.
func unixSockets(find func() []string) func(*attempt) sight {
	return func(a *attempt) sight {
		inside := pathsOfThisNamespace()
		var tried int
		for _, path := range find() {
			if inside[path] {
				continue
			}
			for _, network := range []string{"unix", "unixgram", "unixpacket"} {
				c, err := a.dialer(caseTime).DialContext(a.ctx, network, path)
				if err == nil {
					(&conn{Conn: c}).end()
					return leak("%s is open to us", path)
				}
			}
			tried++
		}
		return held("%d paths, none can be connected to", tried)
	}
}

// pathsOfThisNamespace are the sockets that programs of this sandbox have bound.
func pathsOfThisNamespace() map[string]bool {
	inside := map[string]bool{}
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return inside
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 8 {
			inside[f[7]] = true
		}
	}
	return inside
}

// runtimeDirs are where users' sockets lie.
func runtimeDirs() []string {
	uid := strconv.Itoa(os.Getuid())
	dirs := []string{"/run/user/" + uid, filepath.Join(os.TempDir(), "exeat-"+uid), "/run/exeat"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		dirs = append(dirs, dir)
	}
	return dirs
}

func controlSockets() []string {
	var found []string
	for _, dir := range runtimeDirs() {
		found = append(found, socketsIn(dir, "*.sock", "exeat/*.sock")...)
	}
	return append(found, "/run/exeat/control.sock", "/run/exeat.sock")
}

func hostSockets() []string {
	found := []string{
		"/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock",
		"/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket",
		"/run/snapd.socket", "/run/libvirt/libvirt-sock", "/run/user/0/podman/podman.sock",
	}
	if path := os.Getenv("SSH_AUTH_SOCK"); path != "" {
		found = append(found, path)
	}
	if path, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		found = append(found, path)
	}
	for _, dir := range append(runtimeDirs(), "/run", "/tmp", "/var/tmp", os.Getenv("HOME")) {
		if dir != "" {
			found = append(found, socketsIn(dir, "*", "*/*")...)
		}
	}
	return found
}

func nameSockets() []string {
	return []string{
		"/run/nscd/socket", "/var/run/nscd/socket", "/run/systemd/resolve/io.systemd.Resolve",
		"/run/avahi-daemon/socket", "/run/sssd/nss", "/var/lib/sss/pipes/nss", "/run/mdnsd",
	}
}

// maxPaths bounds how many directory entries are looked at.
const maxPaths = 4096

// socketsIn gives the sockets that match the patterns below a directory.
func socketsIn(dir string, patterns ...string) []string {
	var found []string
	looked := 0
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			continue // a directory's name that looks like a bad pattern
		}
		for _, path := range paths {
			if looked++; looked > maxPaths {
				return found
			}
			if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
				found = append(found, path)
			}
		}
	}
	return found
}

// inherited looks through our descriptors for what a careless parent left.
func inherited(*attempt) sight {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return unproven(err.Error(), "the descriptors cannot be listed")
	}
	var bad, standard []string
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // the one that the listing itself had open
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		socket := strings.HasPrefix(to, "socket:")
		switch {
		case err != nil:
		case fd <= 2 && socket:
			standard = append(standard, e.Name())
		case fd > 2 && flags&unix.FD_CLOEXEC == 0:
			// The runtime's own and ours are closed on exec; only what came by exec is not.
			bad = append(bad, e.Name()+" ("+to+")")
		}
	}
	switch {
	case len(bad) > 0:
		return leak("open: %s", strings.Join(bad, ", "))
	case len(standard) > 0:
		return unproven("descriptor "+strings.Join(standard, ", ")+" is a socket", "its other end is whoever started us")
	}
	return held("%d descriptors, none inherited beside 0 to 2", len(entries))
}

// forgeKey pushes a NUL, which shells ignore, into the terminal's input.
func forgeKey(*attempt) sight {
	b := []byte{0}
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&b[0])))
	runtime.KeepAlive(b)
	switch errno {
	case 0:
		return leak("pushed")
	case unix.EPERM, unix.EIO:
		return held("ioctl(TIOCSTI): %v", errno)
	}
	return unproven(fmt.Sprintf("ioctl(TIOCSTI): %v", errno), "standard input is no terminal")
}

// nested starts a child in a user namespace of its own, in which it has every
// capability; over the network that it shares with us it must have none.
func nested(a *attempt) sight {
	if a.child == nil {
		return unproven("not tried", "no process of its own can be started from here")
	}
	out, err := runNested(a.ctx, a.child(childRules))
	var exit *exec.ExitError
	switch {
	case err == nil:
		return leak("a table was made from the nested namespace")
	case errors.As(err, &exit) && exit.ExitCode() == childRefused:
		return held("%s", strings.TrimSpace(string(out)))
	case errnoOf(err) == unix.EPERM, errnoOf(err) == unix.ENOSPC, errnoOf(err) == unix.EINVAL:
		return held("clone(CLONE_NEWUSER): %v", errnoOf(err))
	}
	return unproven(err.Error(), "the child did not get as far as trying")
}

// ringParams is the size of struct io_uring_params.
const ringParams = 120

func ringSetUp(*attempt) sight {
	params := make([]byte, ringParams)
	fd, _, errno := unix.RawSyscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params[0])), 0)
	runtime.KeepAlive(params)
	switch {
	case errno == 0:
		if err := unix.Close(int(fd)); err != nil {
			return unproven(err.Error(), "the ring is gone")
		}
		return unproven("a ring was made", "its sockets are filtered as any: see B19")
	case errno == unix.ENOSYS:
		return held("io_uring_setup: %v: this kernel has none", errno)
	}
	return held("io_uring_setup: %v", errno)
}

// ringSend sends a datagram by IORING_OP_SEND from a connected socket.
func ringSend(a *attempt) sight {
	return a.sent(a.withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: udpPort, Addr: a.IPv4.As4()}); err != nil {
			return os.NewSyscallError("connect", err)
		}
		r, err := newRing()
		if err != nil {
			return err
		}
		return errors.Join(r.send(fd, []byte(a.marker)), r.close())
	}))
}
