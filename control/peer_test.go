//go:build linux

package control

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/require"
)

const otherUser = 54321

// asChild dials the socket from a process with the attributes, and gives what it
// printed.
func (s *serving) asChild(t *testing.T, attributes *syscall.SysProcAttr) string {
	t.Helper()
	// By this name the child needs no way through the build's directory.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), dialVariable+"="+s.path, "GORACE=atexit_sleep_ms=0")
	cmd.Dir = "/"
	cmd.SysProcAttr = attributes
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out)
}

// openToAll takes away what the file system holds, so that only the check of the
// credentials is left.
func (s *serving) openToAll(t *testing.T) {
	t.Helper()
	if err := errors.Join(os.Chmod(filepath.Dir(s.path), 0o755), os.Chmod(s.path, 0o666)); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherUserIsRefused(t *testing.T) {
	require.Root(t)
	s := start(t, nil)
	other := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	if err := os.Chmod(filepath.Dir(s.path), 0o755); err != nil {
		t.Fatal(err)
	}
	if out := s.asChild(t, other); !strings.Contains(out, "permission denied") {
		t.Errorf("by the socket's mode: %q", out)
	}
	s.openToAll(t)
	if out := s.asChild(t, other); !strings.Contains(out, "uid 54321") || !strings.Contains(out, "may not use this socket") {
		t.Errorf("by its credentials: %q", out)
	}
	if out := s.asChild(t, nil); !strings.Contains(out, "answered by test") {
		t.Errorf("our own user: %q", out)
	}
}

func TestAccess(t *testing.T) {
	require.Root(t)
	uid, gid := uint32(otherUser), uint32(otherUser+1)
	tests := map[string]struct {
		access     Access
		credential syscall.Credential
		want       string
	}{
		"--control-uid lets that user in": {
			Access{UID: &uid}, syscall.Credential{Uid: uid, Gid: 1}, "answered by test",
		},
		"and no other": {
			Access{UID: &uid}, syscall.Credential{Uid: uid + 5, Gid: 1}, "permission denied",
		},
		"--control-gid lets that group in": {
			Access{GID: &gid}, syscall.Credential{Uid: uid, Gid: gid}, "answered by test",
		},
		"a supplementary group counts": {
			Access{GID: &gid}, syscall.Credential{Uid: uid, Gid: 1, Groups: []uint32{7, gid}}, "answered by test",
		},
		"another group does not": {
			Access{GID: &gid}, syscall.Credential{Uid: uid, Gid: 1, Groups: []uint32{7}}, "permission denied",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(c *Config) { c.Access = tt.access })
			if err := os.Chmod(filepath.Dir(s.path), 0o755); err != nil {
				t.Fatal(err)
			}
			if out := s.asChild(t, &syscall.SysProcAttr{Credential: &tt.credential}); !strings.Contains(out, tt.want) {
				t.Errorf("%q, want %q", out, tt.want)
			}
		})
	}
}

func TestAPeerInOtherNamespacesIsRefused(t *testing.T) {
	require.UserNamespaces(t)
	authorize, err := SameNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(c *Config) { c.Authorize = authorize })
	mapping := func(outside int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: outside, HostID: outside, Size: 1}}
	}
	tests := map[string]struct {
		attributes *syscall.SysProcAttr
		want       string
	}{
		"ours are let in": {nil, "answered by test"},
		"another user namespace": {
			&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: mapping(os.Getuid()), GidMappings: mapping(os.Getgid())},
			"another user namespace",
		},
		"another network and user namespace": {
			&syscall.SysProcAttr{
				Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: mapping(os.Getuid()), GidMappings: mapping(os.Getgid()),
			},
			"namespace than this engine",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if out := s.asChild(t, tt.attributes); !strings.Contains(out, tt.want) {
				t.Errorf("%q, want %q", out, tt.want)
			}
		})
	}
}

func TestAPeerThatCannotBeSeenIsRefused(t *testing.T) {
	authorize, err := SameNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	gone := exec.Command("/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		peer Peer
		ok   bool
	}{
		"ourselves":                        {Peer{PID: os.Getpid(), pidfd: -1}, true},
		"in a process namespace above":     {Peer{PID: 0, pidfd: -1}, false},
		"one that has ended":               {Peer{PID: gone.Process.Pid, pidfd: -1}, false},
		"one whose descriptor is not good": {Peer{PID: os.Getpid(), pidfd: 1 << 20}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := authorize(tt.peer); (err == nil) != tt.ok {
				t.Errorf("authorize: %v", err)
			}
		})
	}
}

func TestEveryAnswerToARefusedPeerIs403(t *testing.T) {
	s := start(t, func(c *Config) { c.Authorize = func(Peer) error { return errors.New("not you") } })
	for _, call := range []string{"GET /v1/status", "PUT /v1/policy", "GET /v1/healthz", "GET /nowhere", "PATCH /v1/policy", "GET /v1/openapi.yaml"} {
		conn := s.dial(t)
		if _, err := conn.Write([]byte(call + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(line, "403") {
			t.Errorf("%s: %q, %v", call, line, err)
		}
	}
	err := s.client.Health(context.Background())
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.CodeForbidden || !strings.Contains(refused.Message, "not you") {
		t.Errorf("client: %v", err)
	}
}

func TestAConnectionWithoutCredentialsIsRefused(t *testing.T) {
	s := start(t, nil)
	server, err := New(Config{Engine: s.engine, Log: s.log})
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer func() {
		if err := errors.Join(near.Close(), far.Close()); err != nil {
			t.Error(err)
		}
	}()
	if err := server.checkPeer(near); err == nil {
		t.Error("a pipe was let in")
	}
	if err := permissionOf(context.Background()); err == nil {
		t.Error("permission without a decision")
	}
}
