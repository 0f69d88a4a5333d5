//go:build linux

package sealed

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// server is a socket of the host that keeps what it is sent.
type server struct {
	path string
	got  chan string
}

func (s server) received() string {
	select {
	case got := <-s.got:
		return got
	case <-time.After(30 * time.Second):
		return "(nothing)"
	}
}

func hostSocket(t *testing.T, network string) server {
	t.Helper()
	s := server{path: filepath.Join(shortDir(t), "s"), got: make(chan string, 8)}
	buf := make([]byte, 64)
	if network == "unixgram" {
		c, err := net.ListenUnixgram(network, &net.UnixAddr{Net: network, Name: s.path})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			if n, err := c.Read(buf); err == nil {
				s.got <- string(buf[:n])
			}
		}()
		return s
	}
	l, err := net.Listen(network, s.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if n, err := c.Read(buf); err == nil {
				s.got <- string(buf[:n])
			}
			c.Close()
		}
	}()
	return s
}

// shortDir is a directory whose path leaves room in a socket's address.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// relativeSocket listens under a name without a directory.
func relativeSocket(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	t.Chdir(dir)
	l, err := net.Listen("unix", "relative.sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return filepath.Join(dir, "relative.sock")
}

func hostProcess(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// leakedDescriptor is one that every child of ours inherits.
func leakedDescriptor(t *testing.T) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD, 90)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		unix.Close(fd)
		r.Close()
	})
	return fd
}

// sharedMemory makes a System V segment that goes away with the test.
func sharedMemory(t *testing.T) int {
	t.Helper()
	key := 0x65780000 | os.Getpid()&0xffff
	id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	return key
}

// spareFamily is a socket family of this kernel that is not of our four.
func spareFamily(t *testing.T) int {
	for _, family := range []int{unix.AF_VSOCK, unix.AF_ALG, unix.AF_KEY, unix.AF_PACKET, unix.AF_TIPC, unix.AF_SMC} {
		if fd, err := unix.Socket(family, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err == nil {
			unix.Close(fd)
			return family
		}
	}
	require.Skip(t, "this kernel has no socket family to try")
	return 0
}

func needsIOURing(t *testing.T) {
	if out := run(t, probe("io-uring").without(defences{Seccomp: true})).out; !strings.Contains(out, "done") {
		require.Skip(t, "io_uring is not to be had here: "+out)
	}
}
