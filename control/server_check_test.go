//go:build linux

package control

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/require"
)

func TestWhoListensInASandboxIsNoEngine(t *testing.T) {
	require.UserNamespaces(t)
	mapping := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
	}
	tests := map[string]struct {
		attributes *syscall.SysProcAttr
		want       string
	}{
		"a process beside us": {&syscall.SysProcAttr{}, ""},
		"one in a process namespace below ours": {
			&syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
				UidMappings: mapping(os.Getuid()), GidMappings: mapping(os.Getgid()),
			},
			"is not of this process namespace",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "s")
			child := exec.Command("/proc/self/exe")
			child.Env = append(os.Environ(), listenVariable+"="+path)
			child.SysProcAttr = tt.attributes
			child.SysProcAttr.Pdeathsig = syscall.SIGKILL
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := child.Process.Kill(); err != nil {
					t.Error(err)
				}
				var exit *exec.ExitError
				if err := child.Wait(); err != nil && !errors.As(err, &exit) {
					t.Error(err)
				}
			}()
			conn := dialSoon(t, path)
			defer conn.Close()
			err := CheckServer(conn)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestWhoListenedAndIsGoneIsNoEngine(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), listenVariable+"="+path)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	conn := dialSoon(t, path)
	defer conn.Close()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Error("the listener ended by itself")
	}
	if err := CheckServer(conn); err == nil {
		t.Error("a process that is gone was taken for an engine")
	}
}

// dialSoon connects once somebody listens.
func dialSoon(t *testing.T, path string) net.Conn {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
