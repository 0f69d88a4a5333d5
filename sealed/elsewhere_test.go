package sealed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// probeListen is a service of the host with a socket at a path below a directory,
// made as the word says: it says "bound", listens when it is told to, says so, and
// ends with its input.
func probeListen(args []string) int {
	how, dir := args[0], args[1]
	path := filepath.Join(dir, "s")
	err := func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		at := path
		switch how {
		case "renamed":
			at += ".new"
		case "chroot":
			err = unix.Chroot(dir)
			at = "/s"
		case "mounted":
			view := filepath.Join(dir, "view")
			at = filepath.Join(view, "s")
			err = errors.Join(os.Mkdir(view, 0o777), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount(dir, view, "", unix.MS_BIND, ""))
		}
		if err = errors.Join(err, unix.Bind(fd, &unix.SockaddrUnix{Name: at})); err != nil {
			return err
		}
		if how == "renamed" {
			err = os.Rename(at, path)
		}
		if how != "late" {
			err = errors.Join(err, unix.Listen(fd, 8))
		}
		fmt.Println("bound")
		io.ReadFull(os.Stdin, make([]byte, 1))
		err = errors.Join(err, unix.Listen(fd, 8))
		fmt.Println("listens")
		io.Copy(io.Discard, os.Stdin)
		return err
	}()
	if err != nil {
		return say(err)
	}
	return 0
}

func TestSocketsThatAreNotListedWhereTheyLie(t *testing.T) {
	require.UserNamespaces(t)
	ids := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
	}
	for _, c := range []struct {
		what, how string
		flags     uintptr
	}{
		{"one that was renamed", "renamed", 0},
		{"one that does not listen yet", "late", 0},
		{"one of another network namespace", "plain", unix.CLONE_NEWUSER | unix.CLONE_NEWNET},
		{"one of a process in another root directory", "chroot", unix.CLONE_NEWUSER},
		{"one of another mount namespace", "mounted", unix.CLONE_NEWUSER | unix.CLONE_NEWNS},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := shortDir(t)
			service := exec.Command(os.Getenv(binaryVariable), c.how, dir)
			service.Env = append(os.Environ(), probeVariable+"=listen")
			service.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.flags, Pdeathsig: syscall.SIGKILL}
			if c.flags&unix.CLONE_NEWUSER != 0 {
				service.SysProcAttr.UidMappings, service.SysProcAttr.GidMappings = ids(os.Getuid()), ids(os.Getgid())
				service.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_CHROOT, unix.CAP_SYS_ADMIN}
			}
			tell, err := service.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := service.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := service.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := errors.Join(tell.Close(), service.Wait()); err != nil {
					t.Error(err)
				}
			}()
			says := bufio.NewReader(out)
			hear := func(want string) {
				t.Helper()
				if line, err := says.ReadString('\n'); err != nil || line != want+"\n" {
					t.Fatalf("the service says %q, %v", line, err)
				}
			}
			hear("bound")
			spec := probe("connect", "unix", filepath.Join(dir, "s"), "out")
			spec.Stdout, spec.Dir = devNull(t), "/"
			held, err := Start(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			defer held.Close()
			if _, err := io.WriteString(tell, "\n"); err != nil {
				t.Fatal(err)
			}
			hear("listens")
			if err := held.Release(); err != nil {
				t.Fatal(err)
			}
			if status, err := held.Wait(); status != 1 || err != nil {
				t.Errorf("it was reached: status %d, %v", status, err)
			}
			spec = probe("connect", "unix", filepath.Join(dir, "s"), "out").without(defences{Sockets: true})
			spec.Dir = "/"
			contains(t, run(t, spec).out, "done")
		})
	}
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
