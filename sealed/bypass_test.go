//go:build linux

package sealed

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// leak is one way out: the same attempt is made with the defence and without.
type leak struct {
	row  string // of bypass.md, and what is tried
	spec Spec
	off  defences
	// got and not say what the attempt prints where it is stopped, and where the
	// defence is off.
	with, without string
	needs         func(t *testing.T)
}

func TestEachWayRoundIsShutAndIsOneWithoutItsDefence(t *testing.T) {
	sock := hostSocket(t, "unix")
	gram := hostSocket(t, "unixgram")
	relative := relativeSocket(t)
	runtimeDir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", runtimeDir)
	hidden := filepath.Join(runtimeDir, "secret")
	if err := os.WriteFile(hidden, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	victim := hostProcess(t)
	leaked := leakedDescriptor(t)
	ran := map[string]bool{} // -run may leave some out
	for _, c := range []leak{
		{
			row: "B71 a stream socket of the host", spec: probe("connect", "unix", sock.path, "out"),
			off: defences{Sockets: true}, with: "refused: dial unix " + sock.path, without: "done",
		},
		{
			row: "B71 a datagram socket of the host", spec: probe("connect", "unixgram", gram.path, "out"),
			off: defences{Sockets: true}, with: "refused: dial unixgram " + gram.path, without: "done",
		},
		{
			row: "B71 a socket that was bound by a relative name", spec: probe("connect", "unix", relative, "out"),
			off: defences{Sockets: true}, with: "refused: dial unix " + relative, without: "done",
		},
		{
			row: "B70 B71 the runtime directory", spec: shell("cat " + hidden + " || true"),
			off: defences{Run: true}, with: "No such file", without: "secret",
		},
		{
			row: "B71 /run", spec: shell("mount | grep -c ' on /run type tmpfs (rw,nosuid,nodev,relatime,size=16384k' || true"),
			off: defences{Run: true}, with: "1", without: "0",
		},
		{
			row: "B72 nsswitch asks services of the host", spec: shell("grep hosts: /etc/nsswitch.conf; mount | grep -c /etc/nsswitch.conf || true"),
			off: defences{NSSwitch: true}, with: "hosts: files dns\n1", without: "\n0",
		},
		{
			row: "B73 a signal to a process of the host", spec: probe("kill", fmt.Sprint(victim)),
			off: defences{Proc: true}, with: errnoText(unix.ESRCH), without: "done",
		},
		{
			row: "B73 the list of the host's processes", spec: shell(fmt.Sprintf("test -d /proc/%d && echo visible || echo hidden", victim)),
			off: defences{Proc: true}, with: "hidden", without: "visible",
		},
		{
			row: "B73 shared memory with a process of the host", spec: probe("sysv", fmt.Sprint(sharedMemory(t))),
			off: defences{IPC: true}, with: errnoText(unix.ENOENT), without: "done",
		},
		{
			row: "B73 the environment of process 1", spec: shell("cat /proc/1/environ >/dev/null && echo read || true"),
			off: defences{Dumpable: true}, with: "Permission denied", without: "read",
		},
		{
			row: "B74 io_uring", spec: probe("io-uring"), off: defences{Seccomp: true},
			with: errnoText(unix.EPERM), without: "done", needs: needsIOURing,
		},
		{
			row: "B74 a socket family that is filtered nowhere", spec: probe("family", fmt.Sprint(spareFamily(t)), fmt.Sprint(unix.SOCK_SEQPACKET), "0"),
			off: defences{Seccomp: true}, with: errnoText(unix.EAFNOSUPPORT), without: "done",
		},
		{
			row: "B74 the same in the low half of a wider number", spec: probe("family", fmt.Sprint(uint64(spareFamily(t))|1<<32), fmt.Sprint(unix.SOCK_SEQPACKET), "0"),
			off: defences{Seccomp: true}, with: errnoText(unix.EAFNOSUPPORT), without: "done",
		},
		{
			row: "B74 SMC under an internet family's name", spec: probe("family", fmt.Sprint(unix.AF_INET), fmt.Sprint(unix.SOCK_RAW), "256"),
			off: defences{Seccomp: true}, with: errnoText(unix.EPROTONOSUPPORT), without: "refused: ", // by what the kernel has
		},
		{
			row: "B74 a key that the host looks up, by the DNS where it is told to", spec: probe("request-key"), off: defences{Seccomp: true},
			with: errnoText(unix.ENOSYS), without: "done",
		},
		{
			row: "B75 rules of its own: the namespace's capabilities", spec: shell(require.Tool(t, "nft") + " flush ruleset && echo flushed || true"),
			off: defences{Capabilities: true}, with: "Operation not permitted", without: "flushed",
		},
		{
			row: "B76 an inherited descriptor", spec: probe("write-fd", fmt.Sprint(leaked), "out"),
			off: defences{Descriptors: true}, with: errnoText(unix.EBADF), without: "done",
		},
	} {
		t.Run(c.row, func(t *testing.T) {
			ran[c.row] = true
			if c.needs != nil {
				c.needs(t)
			}
			contains(t, run(t, c.spec).out, c.with)
			contains(t, run(t, c.spec.without(c.off)).out, c.without)
		})
	}
	if !ran["B71 a stream socket of the host"] || !ran["B71 a datagram socket of the host"] {
		return
	}
	if got := sock.received() + gram.received(); got != "outout" {
		t.Errorf("the host's sockets received %q: want one marker each, from the runs without the defence", got)
	}
}

func TestForeignSystemCallsAreKilled(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Log("only x86 has other system call tables in 64 bit programs")
		return
	}
	const killed = 128 + int(unix.SIGSYS)
	for _, name := range []string{"i386", "x32"} {
		if got := run(t, probe(name)); got.status != killed {
			t.Errorf("%s: status %d (%s), want %d", name, got.status, got.out, killed)
		}
		if got := run(t, probe(name).without(defences{Seccomp: true})); got.status == killed {
			t.Errorf("%s is killed without our filter: status %d", name, got.status)
		}
	}
}

func TestKeystrokesCannotBeForged(t *testing.T) {
	_, tty := openTerminal(t)
	for _, request := range []uint64{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSTI | 1<<40, unix.TIOCLINUX | 1<<63} {
		spec := probe("ioctl", fmt.Sprint(request))
		spec.Stdin = tty
		if got := run(t, spec).out; !strings.HasPrefix(got, errnoText(unix.EPERM)) {
			t.Errorf("ioctl %#x: %q", request, got)
		}
		// Without the filter it is up to the kernel: done, EIO (legacy_tiocsti) or
		// ENOTTY (no virtual console); EPERM where it is not the controlling terminal.
		spec = spec.without(defences{Seccomp: true})
		if uint32(request) == unix.TIOCLINUX {
			if got := run(t, spec).out; strings.HasPrefix(got, errnoText(unix.EPERM)) {
				t.Errorf("ioctl %#x without the filter: %q", request, got)
			}
		}
	}
	// Others pass: the size of the window.
	spec := probe("ioctl", fmt.Sprint(unix.TIOCOUTQ))
	spec.Stdin = tty
	contains(t, run(t, spec).out, "done")
}

func TestANestedNamespaceLeadsNowhere(t *testing.T) {
	unshare := require.Tool(t, "unshare")
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if err := os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ what, script, want string }{
		{"it may be made", unshare + " -Ur id -u", "0"},
		{"it has no say over the outer network", unshare + " -Ur " + require.Tool(t, "nft") + " flush ruleset", "Operation not permitted"},
		{"it cannot enter what process 1 is in", unshare + " -Ur ls -l /proc/1/ns/net", "Permission denied"},
		{"it cannot uncover what is hidden", unshare + " -Urm sh -c 'umount " + dir + "; umount -l " + dir + "; ls " + dir + "'; echo", "not mounted"},
		{"it cannot uncover it by way of a new tree", unshare + " -Urm sh -c 'mkdir -p /tmp/x$$; mount --rbind / /tmp/x$$ && umount -l /tmp/x$$" + dir + "; ls /tmp/x$$" + dir + "'; rmdir /tmp/x*; echo", ""},
	} {
		got := run(t, shell(c.script)).out
		contains(t, got, c.want)
		if strings.Contains(got, "secret") {
			t.Errorf("%s: %q", c.what, got)
		}
	}
}

func TestWhatIsKeptComesBack(t *testing.T) {
	sock := hostSocket(t, "unix")
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	sub := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(sub, "file"), filepath.Join(dir, "single")} {
		if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keep := []string{sock.path, sub, filepath.Join(dir, "single")}
	spec := probe("connect", "unix", sock.path, "out")
	spec.Keep = keep
	contains(t, run(t, spec).out, "done")
	spec = shell(fmt.Sprintf("cat %s/file %s/single; ls %s", sub, dir, dir))
	spec.Keep = keep
	contains(t, run(t, spec).out, "keptkepta\nsingle")

	_, err := Start(t.Context(), Spec{Args: []string{"true"}, Keep: []string{filepath.Join(dir, "absent")}})
	if err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a path to keep that does not exist: %v", err)
	}
}

func TestASocketThatIsMadeAnewIsNotSeenEither(t *testing.T) {
	// The test's own working directory is one that the agent must keep.
	t.Chdir(t.TempDir())
	sock := hostSocket(t, "unix")
	spec := probe("connect", "unix", sock.path, "out")
	require.UserNamespaces(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spec.Stdout = w
	s, err := Start(t.Context(), spec)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Remove(sock.path); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", sock.path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if status, err := s.Wait(); status != 1 || err != nil {
		t.Errorf("connected to a socket that was made later: status %d, %v", status, err)
	}
}

func TestHiddenDirectoriesAreEmpty(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "control")
	if err := os.MkdirAll(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sub, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := shell("ls -A " + sub + "; echo end")
	if got := run(t, spec).out; got != "secret\nend\n" {
		t.Errorf("not hidden: %q", got)
	}
	spec.HideDirs = []string{sub, filepath.Join(dir, "absent")}
	if got := run(t, spec).out; got != "end\n" {
		t.Errorf("hidden: %q", got)
	}
	// A working directory below it would be a way back.
	spec.Dir = sub
	spec.HideDirs = []string{dir}
	if s, err := Start(t.Context(), spec); err == nil {
		s.Close()
		t.Error("a hidden working directory was accepted")
	} else {
		contains(t, err.Error(), "the working directory "+sub+" cannot be reached")
	}
}

func TestHiddenFilesAreEmptyAndShut(t *testing.T) {
	dir := shortDir(t)
	log, link := filepath.Join(dir, "log"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(log, []byte("line\n"), 0o600), os.Symlink(log, link)); err != nil {
		t.Fatal(err)
	}
	spec := shell("cat " + log + "; rm -f " + log + "; mv " + log + " " + dir + "/moved; echo forged >>" + log + "; true")
	if got := run(t, spec).out; !strings.HasPrefix(got, "line\n") {
		t.Errorf("not hidden: %q", got)
	}
	if err := os.WriteFile(log, []byte("line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec.HideFiles = []string{link, filepath.Join(dir, "absent")}
	contains(t, run(t, spec).out, "cannot remove")
	if b, err := os.ReadFile(log); err != nil || string(b) != "line\n" {
		t.Errorf("after the command the file is %q, %v", b, err)
	}
}

func TestStandardDescriptorsThatLeadOut(t *testing.T) {
	require.UserNamespaces(t)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := Start(t.Context(), Spec{Args: []string{"true"}, Stdin: dir}); err == nil || !strings.Contains(err.Error(), "standard input is a directory") {
		t.Errorf("a directory as standard input: %v", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
	defer a.Close()
	defer b.Close()
	spec := shell("true")
	spec.Stdin = a
	got := run(t, spec).warnings
	if len(got) != 1 || !strings.HasPrefix(got[0], "standard input is a socket") {
		t.Errorf("warnings: %q", got)
	}
}

// TestRootIsHeldAsInAContainer is bypass row B79.
func TestRootIsHeldAsInAContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("for root alone")
		return
	}
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity",
		"/sys/kernel/uevent_helper", "/sys/kernel/profiling", "/sys/fs/cgroup/cgroup.procs",
		"/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs", "/dev/kmsg",
	} {
		t.Run(path, func(t *testing.T) {
			if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
				t.Logf("not to be opened here at all: %v", err)
				return
			} else {
				unix.Close(fd)
			}
			want := errnoText(unix.EROFS)
			if strings.HasPrefix(path, "/dev/") {
				want = errnoText(unix.ENOENT)
			}
			contains(t, run(t, probe("open", path)).out, want)
			contains(t, run(t, probe("open", path).without(defences{RootPaths: true})).out, "done")
		})
	}
	// 1,3 is /dev/null.
	contains(t, run(t, shell("stat -c %t,%T /proc/kcore /proc/timer_list /proc/keys 2>/dev/null | sort -u")).out, "1,3\n")
	contains(t, run(t, shell("ls -A /dev | tr '\\n' ' '")).out, "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ")
	got := run(t, shell("grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; mknod /tmp/exeat-node c 1 3; echo >/dev/null && head -c 4 /dev/urandom | wc -c; id -u")).out
	for _, want := range []string{fmt.Sprintf("CapEff:\t%016x\nCapBnd:\t%016x\nNoNewPrivs:\t1", rootCapabilities, rootCapabilities), "Operation not permitted", "4\n0\n"} {
		contains(t, got, want)
	}
	contains(t, run(t, probe("family", fmt.Sprint(unix.AF_INET), fmt.Sprint(unix.SOCK_RAW), fmt.Sprint(unix.IPPROTO_ICMP))).out, errnoText(unix.EPERM))
}

func TestAnOrdinaryUserHasNoCapabilities(t *testing.T) {
	spec := shell("grep -E '^Cap|NoNewPrivs|Seccomp:' /proc/self/status")
	if os.Geteuid() == 0 {
		t.Setenv("SUDO_UID", fmt.Sprint(nobody))
		t.Setenv("SUDO_GID", fmt.Sprint(nobody))
		spec.Dir = "/"
	}
	none := strings.Repeat("0", 16)
	want := "CapInh:\t" + none + "\nCapPrm:\t" + none + "\nCapEff:\t" + none + "\nCapBnd:\t" + none + "\nCapAmb:\t" + none + "\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	if got := run(t, spec).out; got != want {
		t.Errorf("got %s", got)
	}
}

func TestTheEngineCanHideItself(t *testing.T) {
	cmd := exec.Command(os.Getenv(binaryVariable))
	cmd.Env = append(os.Environ(), probeVariable+"=dumpable")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(out), "dumpable 0")
}
