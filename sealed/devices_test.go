package sealed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// hostMount mounts a file system of the host for the time of the test.
func hostMount(t *testing.T, fstype string) string {
	t.Helper()
	require.Root(t)
	dir := shortDir(t)
	if err := unix.Mount(fstype, dir, fstype, 0, ""); err != nil {
		require.Skip(t, fmt.Sprintf("%s cannot be mounted here: %v", fstype, err))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestSharedMemoryIsTheSandboxsOwn(t *testing.T) {
	f, err := os.CreateTemp("/dev/shm", "exeat-test-")
	if err != nil {
		require.Skip(t, fmt.Sprintf("no shared memory here: %v", err))
	}
	t.Cleanup(func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	spec := shell("test -e " + f.Name() + " && echo seen || echo hidden; echo own >/dev/shm/own && cat /dev/shm/own")
	if got := run(t, spec).out; got != "hidden\nown\n" {
		t.Errorf("%q", got)
	}
	if os.Geteuid() != 0 { // root's whole /dev is a fresh one
		spec.Keep = []string{f.Name()}
		if got := run(t, spec).out; got != "seen\nown\n" {
			t.Errorf("kept: %q", got)
		}
	}
	contains(t, run(t, shell("test -e "+f.Name()+" && echo seen").without(defences{IPC: true, RootPaths: true})).out, "seen")
}

func TestAsRootMessageQueuesOfTheHostAreNotSeen(t *testing.T) {
	dir := hostMount(t, "mqueue")
	path := filepath.Join(dir, "exeat-test")
	if f, err := os.Create(path); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}()
	contains(t, run(t, probe("open", path)).out, errnoText(unix.ENOENT))
	contains(t, run(t, probe("open", path).without(defences{IPC: true})).out, "done")
}

func TestAsRootDevicesElsewhereAreUseless(t *testing.T) {
	path := filepath.Join(hostMount(t, "devtmpfs"), "null")
	contains(t, run(t, probe("open", path)).out, errnoText(unix.EACCES))
	contains(t, run(t, probe("open", path).without(defences{RootPaths: true})).out, "done")
	contains(t, run(t, probe("open", "/dev/null")).out, "done")
}

func TestAsRootNoOtherProcIsWiderThanTheSandboxs(t *testing.T) {
	path := filepath.Join(hostMount(t, "proc"), "sys/kernel/core_pattern")
	contains(t, run(t, probe("open", path)).out, errnoText(unix.EROFS))
	contains(t, run(t, probe("open", path).without(defences{RootPaths: true})).out, "done")
	nested := require.Tool(t, "unshare") + " -Urpfm --mount-proc echo mounted; echo"
	if got := run(t, shell(nested)).out; strings.Contains(got, "mounted") {
		t.Error("a fresh /proc can be mounted in a nested namespace")
	}
}

func TestAsRootAProcThatIsOutOfReachIsNoHindrance(t *testing.T) {
	require.Root(t)
	dir := shortDir(t)
	at := filepath.Join(dir, "shut", "proc")
	if err := errors.Join(os.MkdirAll(at, 0o755), os.Chmod(filepath.Join(dir, "shut"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", at, "proc", 0, ""); err != nil {
		require.Skip(t, fmt.Sprintf("proc cannot be mounted here: %v", err))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("SUDO_UID", fmt.Sprint(nobody))
	t.Setenv("SUDO_GID", fmt.Sprint(nobody))
	spec := shell("id -u")
	spec.Dir = "/"
	contains(t, run(t, spec).out, fmt.Sprint(nobody))
}

func TestAsRootAnOrdinaryUsersCgroupsAreReadOnly(t *testing.T) {
	dir := hostMount(t, "cgroup2")
	own := filepath.Join(dir, filepath.Base(dir))
	if err := os.Mkdir(own, 0o755); err != nil {
		require.Skip(t, fmt.Sprintf("no control group can be made here: %v", err))
	}
	t.Cleanup(func() {
		if err := os.Remove(own); err != nil {
			t.Error(err)
		}
	})
	freeze := filepath.Join(own, "cgroup.freeze")
	if err := os.Chown(freeze, nobody, nobody); err != nil {
		require.Skip(t, fmt.Sprintf("it cannot be given away: %v", err))
	}
	t.Setenv("SUDO_UID", fmt.Sprint(nobody))
	t.Setenv("SUDO_GID", fmt.Sprint(nobody))
	spec := probe("open", freeze)
	spec.Dir = "/"
	contains(t, run(t, spec).out, errnoText(unix.EROFS))
	contains(t, run(t, spec.without(defences{RootPaths: true})).out, "done")
}

func TestAsRootADirectoryIsHiddenWhereverItIsMounted(t *testing.T) {
	require.Root(t)
	dir, alias := shortDir(t), shortDir(t)
	inside := filepath.Join(dir, "control")
	if err := errors.Join(os.Mkdir(inside, 0o755), os.WriteFile(filepath.Join(inside, "secret"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dir, alias, "", unix.MS_BIND, ""); err != nil {
		require.Skip(t, fmt.Sprintf("nothing can be mounted here: %v", err))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(alias, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	spec := shell("cd " + alias + "/control && ls -A; echo end")
	if got := run(t, spec).out; got != "secret\nend\n" {
		t.Errorf("not hidden: %q", got)
	}
	spec.HideDirs = []string{inside}
	if got := run(t, spec).out; got != "end\n" {
		t.Errorf("hidden: %q", got)
	}
}
