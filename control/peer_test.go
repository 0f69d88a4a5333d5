//go:build linux

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
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

func TestListen(t *testing.T) {
	path := filepath.Join(shortDir(t), "exeat.sock")
	ln, err := Listen(path, Access{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, %v: want a socket with 0600", info.Mode(), err)
	}
	if _, err := Listen(path, Access{}); !errors.Is(err, ErrInUse) {
		t.Errorf("a socket in use: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays behind: %v", err)
	}

	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	first, err := Listen(path, Access{})
	if err != nil {
		t.Fatalf("a stale socket is in the way: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, Access{})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("closing the first removed the second's socket: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, Access{}); err == nil || errors.Is(err, ErrInUse) {
		t.Errorf("a file that is no socket: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "precious" {
		t.Errorf("the file: %q, %v", data, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestClientErrorsBranch(t *testing.T) {
	s := start(t, nil)
	ctx := context.Background()
	stale := uint64(1)
	doc := document(t, `"public"`)
	_, err := s.client.Swap(ctx, api.SwapRequest{Policy: &doc, IfGeneration: &stale})
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.CodeStaleGeneration || refused.CurrentGeneration != 3 {
		t.Errorf("a stale swap: %v", err)
	}
	if errors.Is(err, client.ErrUnreachable) {
		t.Error("a refusal is told as unreachable")
	}

	_, err = s.client.SwapDocument(ctx, []byte(`{"network_mode": "allowlist", "allowed_hosts": ["a b"], "x": 1}`), api.SwapRequest{})
	if !errors.As(err, &refused) || len(refused.Problems) != 2 {
		t.Errorf("a faulty document: %v", err)
	}
	lease := api.SwapRequest{For: 60e9, Then: &api.Then{Phase: "run"}, Phase: "evaluation"}
	result, err := s.client.SwapDocument(ctx, []byte(`"no-network"`), lease)
	if err != nil || result.Generation != 4 || s.engine.last.Then.Phase != "run" || s.engine.last.For != lease.For {
		t.Errorf("a swap: %+v, %v; the engine got %+v", result, err, s.engine.last)
	}

	gone := client.New(filepath.Join(shortDir(t), "nothing.sock"))
	defer gone.Close()
	if _, err := gone.Status(ctx); !errors.Is(err, client.ErrUnreachable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.client.Status(ended); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnreachable) {
		t.Errorf("a caller who gave up: %v", err)
	}
}

func TestClientReadsWhatTheServerWrites(t *testing.T) {
	s := start(t, func(c *Config) { c.Prober = prober{} })
	ctx := context.Background()
	state, err := s.client.Policy(ctx)
	if err != nil || state.Generation != 3 || len(state.Policy.Allowed) != 2 {
		t.Errorf("policy %+v, %v", state, err)
	}
	phases, err := s.client.SetPhases(ctx, []api.Phase{{Name: "a b", Policy: state.Policy}})
	if err != nil || len(phases.Phases) != 1 {
		t.Errorf("phases %+v, %v", phases, err)
	}
	entered, err := s.client.EnterPhase(ctx, "a b", api.EnterRequest{For: 60e9})
	if err != nil || entered.Lease == nil || entered.Lease.Then.Policy == nil {
		t.Errorf("entered %+v, %v: want a lease that ends in a policy", entered, err)
	}
	explained, err := s.client.Explain(ctx, "pypi.org")
	if err != nil || len(explained) != 1 || explained[0].Verdict.String() != "allow" {
		t.Errorf("explained %+v, %v", explained, err)
	}
	flows, err := s.client.Flows(ctx)
	if err != nil || len(flows) != 1 || flows[0].Client.Port() != 50000 {
		t.Errorf("flows %+v, %v", flows, err)
	}
	if err := s.client.CutFlow(ctx, "f1"); err != nil {
		t.Errorf("cut: %v", err)
	}
	checked, err := s.client.Check(ctx, document(t, `"no-network"`))
	if err != nil || len(checked.Diff.Denied) == 0 {
		t.Errorf("check %+v, %v", checked, err)
	}
	capabilities, err := s.client.Capabilities(ctx)
	if err != nil || capabilities.ICMP != nil || *capabilities.TargetUDP {
		t.Errorf("capabilities %+v, %v", capabilities, err)
	}
	report, err := s.client.Probe(ctx, api.ProbeRequest{})
	if err != nil || report.Leaks != 1 {
		t.Errorf("probe %+v, %v", report, err)
	}
	metrics, err := s.client.Metrics(ctx)
	if err != nil || !strings.Contains(string(metrics), "exeat_policy_generation 4") {
		t.Errorf("metrics %v:\n%s", err, metrics)
	}
	s.engine.mu.Lock()
	s.engine.ready = false
	s.engine.mu.Unlock()
	var notReady *api.Error
	if err := s.client.Ready(ctx); !errors.As(err, &notReady) || notReady.Code != api.CodeNotReady {
		t.Errorf("ready: %v", err)
	}
	if data, err := json.Marshal(api.Then{}); err != nil || string(data) != `"no-network"` {
		t.Errorf("the zero Then is %s, %v", data, err)
	}
}
