//go:build linux

package sealed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

func TestStatusIsTheCommandsOwn(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "exit 5\n", 0o755)
	write("locked", "exit 5\n", 0o644)
	lost := write("lost", "#!/no/such/interpreter\n", 0o755)
	for _, c := range []struct {
		what   string
		args   []string
		status int
		failed string // part of the message where CMD was not started
	}{
		{"it succeeds", []string{"true"}, 0, ""},
		{"it fails", []string{"sh", "-c", "exit 3"}, 3, ""},
		{"a signal kills it", []string{"sh", "-c", "kill -TERM $$"}, 143, ""},
		{"a script without an interpreter line is the shell's", []string{plain}, 5, ""},
		{"the name is looked up in PATH", []string{"plain"}, 5, ""},
		{"there is no such command", []string{"no-such-command"}, 127, "no-such-command: command not found"},
		{"there is no such file", []string{"./nothing"}, 127, "./nothing: no such file"},
		{"its interpreter is missing", []string{lost}, 127, "interpreter"},
		{"it is not executable", []string{filepath.Join(dir, "locked")}, 126, "permission denied"},
		{"what PATH holds is not executable", []string{"locked"}, 126, "permission denied"},
		{"it is a directory", []string{dir}, 126, "permission denied"},
	} {
		t.Run(c.what, func(t *testing.T) {
			require.UserNamespaces(t)
			s, err := Start(t.Context(), Spec{Args: c.args, Dir: dir, Env: []string{"PATH=" + dir + ":/usr/bin:/bin"}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			err = s.Release()
			var failure *ExecError
			switch {
			case errors.As(err, &failure):
				if failure.Status != c.status || c.failed == "" || !strings.Contains(failure.Message, c.failed) {
					t.Errorf("not started: %d %q, want %d %q", failure.Status, failure.Message, c.status, c.failed)
				}
			case err != nil:
				t.Error(err)
			case c.failed != "":
				t.Error("it was started")
			default:
				if status, err := s.Wait(); status != c.status || err != nil {
					t.Errorf("status %d, %v, want %d", status, err, c.status)
				}
			}
		})
	}
}

func TestTheUserKeepsWhoTheyAre(t *testing.T) {
	dir := t.TempDir()
	spec := shell("pwd; id -u; id -g; echo $MARK; touch made; cat")
	spec.Dir, spec.Env = dir, append(os.Environ(), "MARK=kept")
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	io.WriteString(w, "from outside\n")
	w.Close()
	spec.Stdin = in
	want := fmt.Sprintf("%s\n%d\n%d\nkept\nfrom outside\n", dir, os.Geteuid(), os.Getegid())
	if got := run(t, spec).out; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	st, err := os.Stat(filepath.Join(dir, "made"))
	if err != nil {
		t.Fatal(err)
	}
	if sys := st.Sys().(*syscall.Stat_t); int(sys.Uid) != os.Geteuid() || int(sys.Gid) != os.Getegid() {
		t.Errorf("the file belongs to %d:%d", sys.Uid, sys.Gid)
	}
}

func TestRootDropsToTheUserWhoCalledSudo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("for root alone")
		return
	}
	t.Setenv("SUDO_UID", fmt.Sprint(nobody))
	t.Setenv("SUDO_GID", fmt.Sprint(nobody))
	spec := shell("id -u; id -g; id -G; echo $HOME $USER; touch /etc/exeat-test")
	spec.Dir = "/"
	got := run(t, spec).out
	contains(t, got, "65534\n65534\n65534\n/nonexistent nobody\n")
	contains(t, got, "Permission denied")
	spec.AsRoot = true
	contains(t, run(t, shell("id -u")).out, "65534")
	spec = shell("id -u")
	spec.AsRoot = true
	contains(t, run(t, spec).out, "0\n")

	t.Setenv("SUDO_UID", "x")
	if _, err := Start(t.Context(), spec.without(defences{})); err != nil {
		t.Errorf("as root the variable does not matter: %v", err)
	}
	spec.AsRoot = false
	if _, err := Start(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "SUDO_UID") {
		t.Errorf("a user that is no number: %v", err)
	}
}

func TestNamesAreLookedUpHere(t *testing.T) {
	spec := shell("cat /etc/resolv.conf; head -2 /etc/hosts")
	spec.Search = []string{"corp.test", "lab.test"}
	spec.AddHosts = []HostEntry{{Name: "db.test", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}}}
	contains(t, run(t, spec).out, "nameserver 198.18.0.1\nsearch corp.test lab.test\n192.0.2.7 db.test\n2001:db8::7 db.test\n")
}

func TestSignalsArePassedOn(t *testing.T) {
	require.UserNamespaces(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spec := shell(`trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.01; done`)
	spec.Stdout = w
	s, err := Start(t.Context(), spec)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(r)
	expect := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q, want %q", lines.Text(), want)
		}
	}
	expect("ready")
	if err := s.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	expect("usr1")
	stop := s.RelaySignals()
	defer stop()
	if err := unix.Kill(unix.Getpid(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	expect("term")
	if status, err := s.Wait(); status != 9 || err != nil {
		t.Errorf("status %d, %v", status, err)
	}
}

func TestNothingOutlivesTheCommand(t *testing.T) {
	// Whoever is left holds standard output open, and run waits for its end.
	got := run(t, shell("setsid sleep 1000 & (sleep 1000 &) ; echo done"))
	if got.out != "done\n" || got.status != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTheContextEndsTheSandbox(t *testing.T) {
	require.UserNamespaces(t)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Start(ctx, shell("sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if status, err := s.Wait(); status != 137 || err == nil {
		t.Errorf("status %d, %v", status, err)
	}
}

func TestCloseBeforeRelease(t *testing.T) {
	require.UserNamespaces(t)
	s, err := Start(t.Context(), shell("true"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Release(); err == nil {
		t.Error("released after Close")
	}
}

// probeEngine runs a sandbox as exeat would: file to remove, then the command.
func probeEngine(args []string) int {
	s, err := Start(context.Background(), Spec{
		Args: args[1:], Env: environmentWithout(probeVariable), RemoveOnParentDeath: strings.Fields(args[0]),
	})
	if err != nil {
		fmt.Println(err)
		return StatusRefused
	}
	defer s.Close()
	defer s.RelaySignals()()
	fmt.Println("process", s.Pid())
	if err := s.Release(); err != nil {
		fmt.Println(err)
		return StatusRefused
	}
	status, err := s.Wait()
	if err != nil {
		fmt.Println(err)
	}
	return status
}

func TestNothingIsLeftWhenTheEngineIsKilled(t *testing.T) {
	require.UserNamespaces(t)
	for _, stopped := range []bool{false, true} {
		name := filepath.Join(t.TempDir(), "control.sock")
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Getenv(binaryVariable), name, "/bin/sh", "-c", "echo started; sleep 1000 & exec setsid sleep 1000")
		cmd.Env = append(os.Environ(), probeVariable+"=engine")
		cmd.Stdout, cmd.Stderr = w, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		lines := bufio.NewScanner(r)
		var pid int
		for lines.Scan() && lines.Text() != "started" {
			if n, err := fmt.Sscanf(lines.Text(), "process %d", &pid); n != 1 {
				t.Fatal(lines.Text(), err)
			}
		}
		if stopped {
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
		// The end of the output is the end of everybody who could write to it.
		r.SetReadDeadline(time.Now().Add(10 * time.Second))
		for lines.Scan() {
			t.Log(lines.Text())
		}
		if err := lines.Err(); err != nil {
			t.Errorf("stopped %v: somebody is left: %v", stopped, err)
			unix.Kill(pid, unix.SIGKILL)
		}
		r.Close()
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("stopped %v: the socket is left: %v", stopped, err)
		}
	}
}

// probeForbidden forbids user namespaces in a user namespace of its own, and
// tries to start a sandbox.
func probeForbidden(args []string) int {
	if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(args[0], ".", "/"), []byte(args[1]), 0); err != nil {
		fmt.Println(err)
		return 1
	}
	_, err := Start(context.Background(), Spec{Args: []string{"true"}})
	fmt.Println(errors.Is(err, ErrUserNamespaces), err)
	return 0
}

func TestTheSettingInTheWayIsNamed(t *testing.T) {
	require.UserNamespaces(t)
	for _, setting := range []string{"user.max_user_namespaces", "user.max_net_namespaces", "user.max_pid_namespaces"} {
		cmd := exec.Command(os.Getenv(binaryVariable), setting, "0")
		cmd.Env = append(environmentWithout("SUDO_UID"), probeVariable+"=forbidden")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		contains(t, string(out), "true user namespaces are not available: ")
		contains(t, string(out), setting+" is 0; raise it with `sysctl -w "+setting+"=")
	}
}
