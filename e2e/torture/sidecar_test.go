//go:build linux

package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/e2e/require"
)

// namespaces numbers the namespaces: their addresses and links differ.
var namespaces atomic.Uint32

// dialTimeout bounds every connection of the tests' own.
const dialTimeout = 5 * time.Second

// sidecar is an exeatd.
type sidecar struct {
	*namespace
	*client.Client
	cmd    *exec.Cmd
	dir    string
	socket string
	flags  []string
	// wrap, where not nil, is a command line that executes the one after it.
	wrap   []string
	stdout output
	stderr output
	ended  chan error
}

// prepare makes a sidecar that is not started yet.
func prepare(t testing.TB, flags ...string) *sidecar {
	t.Helper()
	needWorld(t)
	require.Root(t)
	s := &sidecar{namespace: newNamespace(t), dir: t.TempDir()}
	s.socket = filepath.Join(s.dir, "control.sock")
	s.flags = append([]string{"--control", s.socket, "--resolver", "203.0.113.53"}, flags...)
	s.Client = client.New(s.socket)
	t.Cleanup(s.Client.Close)
	return s
}

// begin starts the process.
func (s *sidecar) begin(t testing.TB) {
	t.Helper()
	line := append(append(append([]string(nil), s.wrap...), exeatd), s.flags...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = &s.stdout, &s.stderr
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if s.group != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(s.group.Fd())
	}
	if err := s.in(cmd.Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	s.cmd, s.ended = cmd, ended
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("exeatd wrote:\n%s\n%s", tail(s.stderr.String(), 4000), tail(s.stdout.String(), 4000))
		}
		if err := cmd.Process.Kill(); err == nil {
			<-ended
		}
		s.awaitEmpty(t)
	})
}

// kill kills the keeper and waits until its worker is gone too.
func (s *sidecar) kill(t testing.TB) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.ended <- <-s.ended
	s.awaitEmpty(t)
}

func (s *sidecar) awaitEmpty(t testing.TB) {
	if s.group == nil {
		return
	}
	eventually(t, "the end of the worker", func() bool {
		left, err := os.ReadFile(s.group.Name() + "/cgroup.procs")
		return err != nil || len(left) == 0
	})
}

func (s *sidecar) awaitReady(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := s.Ready(ctx)
		cancel()
		if err == nil {
			return
		}
		select {
		case end := <-s.ended:
			s.ended <- end
			t.Fatalf("exeatd ended: %v\n%s", end, s.stderr.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// worker is its process id.
func (s *sidecar) worker(t testing.TB) (pid int) {
	t.Helper()
	eventually(t, "a worker", func() bool {
		pid = s.findWorker()
		return pid != 0
	})
	return pid
}

func (s *sidecar) findWorker() (pid int) {
	// The thread that starts workers need not be the first.
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for _, task := range tasks {
		if data, err := os.ReadFile(task); err == nil {
			if _, err := fmt.Sscan(string(data), &pid); err == nil {
				return pid
			}
		}
	}
	return 0
}

// refused says that an address is refused to the sandbox.
func (s *sidecar) refused(t testing.TB, network, address string) {
	t.Helper()
	conn, err := s.dial(network, address)
	if err == nil && network == "udp" {
		_, err = conn.Write([]byte("hello"))
	}
	if conn != nil {
		conn.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		t.Errorf("%s %s: %v, want it refused", network, address, err)
	}
}

// packetInfo makes a socket tell which address was asked.
func packetInfo(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) })
	return errors.Join(err, inner)
}
