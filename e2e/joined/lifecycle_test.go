//go:build linux

package joined

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// killWorker kills the worker and says how long it took until another served.
func (s *sidecar) killWorker(t *testing.T) time.Duration {
	t.Helper()
	old := s.Worker(t)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	conn, err := s.Dial("tcp", "203.0.113.10:80") // it waits in the keeper's queue
	if err != nil {
		t.Fatalf("connect while no worker runs: %v", err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: pypi.test\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 12)
	if _, err := io.ReadFull(conn, line); err != nil || string(line) != "HTTP/1.1 200" {
		t.Fatalf("answer %q, %v", line, err)
	}
	took := time.Since(began)
	if now := s.Worker(t); now == old {
		t.Errorf("worker %d is still there", now)
	}
	return took
}

func TestAKilledWorkerIsReplacedWithoutARefusedConnection(t *testing.T) {
	const open, closed = "203.0.113.7:7", "203.0.113.66:7"
	forbidden := serveUDP(t, closed)
	s := start(t, "--allow", "pypi.test", "--allow", open, "--allow", "ssh.test:22")
	address := s.swap(t, `{"network_mode":"allowlist","allowed_hosts":["pypi.test","`+open+`","ssh.test:22"]}`)
	if a := s.resolve(t, "ssh.test", 1, "198.51.100.1:53"); len(a.Answer) != 1 {
		t.Fatalf("ssh.test: %v", a)
	}
	direct := s.talk(t, open)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	var refused, connects, leaks atomic.Int64
	work.Go(func() {
		for ctx.Err() == nil {
			conn, err := s.Dial("tcp", "203.0.113.10:80")
			connects.Add(1)
			if err != nil {
				refused.Add(1)
				continue
			}
			conn.Close()
		}
	})
	work.Go(func() {
		conn, err := s.Dial("udp", closed)
		if err != nil {
			return
		}
		defer conn.Close()
		for ctx.Err() == nil {
			if _, err := io.WriteString(conn, "leak"); err == nil {
				leaks.Add(1)
			}
		}
	})
	best := time.Hour
	for range 5 {
		took := s.killWorker(t)
		t.Logf("served again after %s", took)
		best = min(best, took)
		direct.lives(t, "a flow that goes straight out")
	}
	if best > time.Second { // ten times what is promised
		t.Errorf("recovery took %s at best", best)
	}
	// The address of a name that a worker before handed out.
	conn, err := s.Dial("tcp", "203.0.113.15:22")
	if err != nil {
		t.Errorf("an address that a worker before handed out: %v", err)
	} else {
		conn.Close()
	}
	cancel()
	work.Wait()
	t.Logf("%d connections, %d refused", connects.Load(), refused.Load())
	if refused.Load() > 0 || leaks.Load() > 0 || forbidden.count() > 0 {
		t.Errorf("%d of %d connections refused, %d datagrams not refused, %d arrived",
			refused.Load(), connects.Load(), leaks.Load(), forbidden.count())
	}
	s.AwaitReady(t)
	state, err := s.Policy(t.Context())
	if err != nil || state.Generation != address.Generation {
		t.Errorf("generation %d, %v; want the one in force before, %d", state.Generation, err, address.Generation)
	}
}

func TestAWorkerKilledAmidSwapsLeavesAWholePolicy(t *testing.T) {
	addresses := []string{"203.0.113.7:7", "203.0.113.8:7"}
	s := start(t, "--allow", addresses[0])
	documents := make([]policy.Document, len(addresses))
	for i, a := range addresses {
		documents[i] = mustParse(t, `{"network_mode":"allowlist","allowed_hosts":["`+a+`"]}`)
	}
	for range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ctx.Err() == nil; i++ {
				// It fails when the worker dies under it.
				if _, err := s.Swap(ctx, api.SwapRequest{Policy: &documents[i%2]}); err != nil {
					return
				}
			}
		}()
		time.Sleep(20 * time.Millisecond)
		if err := syscall.Kill(s.Worker(t), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		cancel()
		<-done
		s.AwaitReady(t)
		state, err := s.Policy(t.Context())
		if err != nil || len(state.Policy.Allowed) != 1 {
			t.Fatalf("policy %+v, %v", state.Policy, err)
		}
		for _, a := range addresses {
			if state.Policy.Allowed[0].String() == a {
				s.echoes(t, a)
			} else {
				s.refused(t, "tcp", a)
			}
		}
	}
}

func TestAKilledKeeperLeavesTheSandboxShut(t *testing.T) {
	forbidden := serveUDP(t, "203.0.113.66:7")
	s := start(t, "--allow", "pypi.test", "--allow", "203.0.113.7:7")
	worker := s.Worker(t)
	if err := s.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.Ended
	s.Ended <- nil
	lab.Eventually(t, "the end of the worker", func() bool { return errors.Is(syscall.Kill(worker, 0), unix.ESRCH) })
	for _, address := range []string{"203.0.113.66:22", "[2001:db8::66]:22", "203.0.113.10:443", "203.0.113.10:80"} {
		if conn, err := s.Dial("tcp", address); err == nil {
			conn.Close()
			t.Errorf("%s: connected", address)
		}
	}
	s.refused(t, "udp", "203.0.113.66:7")
	if conn, err := s.Dial("udp", "203.0.113.53:53"); err == nil {
		if _, err = exchangeOnce(conn); err == nil {
			t.Error("a DNS question was answered")
		}
		conn.Close()
	}
	if forbidden.count() > 0 {
		t.Errorf("%d forbidden datagrams arrived", forbidden.count())
	}
	// What a kernel rule alone allows stays allowed, as it was in force.
	s.echoes(t, "203.0.113.7:7")

	// A keeper that comes after it finds a stale socket and another's rules.
	s.Begin(t)
	s.AwaitReady(t)
	s.fetches(t, "https://pypi.test/", s.byName(t, "pypi.test")...)
	s.refused(t, "tcp", "203.0.113.66:22")
}

func exchangeOnce(conn net.Conn) (int, error) {
	if err := conn.SetDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		return 0, err
	}
	if _, err := conn.Write([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04pypi\x04test\x00\x00\x01\x00\x01")); err != nil {
		return 0, err
	}
	return conn.Read(make([]byte, 512))
}

// stop ends exeatd as a container engine does.
func (s *sidecar) stop(t testing.TB) {
	t.Helper()
	if err := s.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.Ended:
		s.Ended <- nil
		if err != nil {
			t.Errorf("exeatd ended: %v\n%s", err, s.Stderr.String())
		}
	case <-time.After(15 * time.Second):
		t.Fatal("exeatd does not stop")
	}
}

func TestARestartGoesOnWithWhatWasInForce(t *testing.T) {
	state := t.TempDir()
	s := prepare(t, "--allow", "203.0.113.7:7", "--state", state)
	s.Begin(t)
	s.AwaitReady(t)
	if _, err := s.SetPhases(t.Context(), []api.Phase{{Name: "run", Policy: mustParse(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.8:7"]}`)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.EnterPhase(t.Context(), "run", api.EnterRequest{For: api.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	s.stop(t)
	s.refused(t, "tcp", "203.0.113.7:7")
	s.Begin(t)
	s.AwaitReady(t)
	got, err := s.Policy(t.Context())
	if err != nil || got.Generation != 2 || got.Phase != "run" || got.Lease == nil {
		t.Errorf("after the restart: %+v, %v; want generation 2, phase run and its lease", got, err)
	}
	s.echoes(t, "203.0.113.8:7")
	s.refused(t, "tcp", "203.0.113.7:7")

	s.stop(t)
	file := filepath.Join(state, "state.json")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	s.Begin(t)
	lab.Eventually(t, "the event of the torn state", func() bool { return strings.Contains(s.Stdout.String(), "can't be read") })
	s.refused(t, "tcp", "203.0.113.8:7")
	s.refused(t, "tcp", "203.0.113.7:7")
	if err := s.Ready(t.Context()); err == nil {
		t.Error("ready though the state can't be read")
	}
	s.swap(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.7:7"]}`)
	s.echoes(t, "203.0.113.7:7")
	s.AwaitReady(t)
}

func TestNoQueueIsLeftToASandboxWithNETRAW(t *testing.T) {
	s := start(t, "--allow", "pypi.test")
	hold := func() error {
		return s.In(func() error {
			link, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			queues, err := firewall.HoldQueues(link.Index)
			if err != nil {
				return err
			}
			return queues.Close()
		})
	}
	if err := hold(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("binding an AF_XDP queue: %v, want it to be held", err)
	}
	s.killWorker(t)
	if err := hold(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("binding an AF_XDP queue after a worker's end: %v, want it to be held", err)
	}
	s.stop(t)
	lab.Eventually(t, "the queues to be free, or this case shows nothing", func() bool { return hold() == nil })
}

func TestSIGTERMDrainsAndLeavesTheRules(t *testing.T) {
	s := start(t, "--allow", "pypi.test", "--drain", "2s")
	s.resolve(t, "pypi.test", 1, "198.51.100.1:53")
	conn, err := s.Dial("tcp", "203.0.113.10:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Paced: it takes longer than the signal does.
	if _, err := io.WriteString(conn, "GET /bytes?n=98304&every=100ms HTTP/1.1\r\nHost: pypi.test\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err != nil {
		t.Fatal(err)
	}
	go func() {
		if err := s.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}()
	body, err := io.ReadAll(conn)
	if err != nil || len(body) < 98304 {
		t.Errorf("%d bytes, %v; want the whole download", len(body), err)
	}
	if err := <-s.Ended; err != nil {
		t.Errorf("exeatd ended: %v\n%s", err, s.Stderr.String())
	}
	s.Ended <- nil
	s.refused(t, "tcp", "203.0.113.66:22")
	if _, err := os.Stat(s.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the control socket is still there: %v", err)
	}
}

func TestKeeperAndWorkerHoldNetAdminAndNothingElse(t *testing.T) {
	setpriv := require.Tool(t, "setpriv")
	for name, grouped := range map[string]bool{"told apart by control group": true, "told apart by uid and secret": false} {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, "--allow", "203.0.113.7:7", "--allow", "pypi.test")
			if !grouped {
				s.Group = nil
			}
			s.Begin(t)
			s.AwaitReady(t)
			for who, pid := range map[string]int{"keeper": s.Keeper(), "worker": s.Worker(t)} {
				tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
				if err != nil || len(tasks) == 0 {
					t.Fatal(err)
				}
				for _, task := range tasks {
					data, err := os.ReadFile(task)
					if err != nil {
						continue // the thread has ended
					}
					for _, line := range []string{"CapPrm:\t0000000000001000", "CapEff:\t0000000000001000", "NoNewPrivs:\t1"} {
						if !strings.Contains(string(data), line) {
							t.Errorf("%s: no line %q in\n%s", who, line, data)
						}
					}
				}
				// Who has its uid and its capabilities, and no more, is kept out by this alone
				// (ptrace(2), PR_SET_DUMPABLE).
				out, err := exec.Command(setpriv, "--bounding-set", "-all,+net_admin", "--inh-caps", "-all", "cat", fmt.Sprintf("/proc/%d/environ", pid)).CombinedOutput()
				if err == nil || !strings.Contains(string(out), "ermission denied") && !strings.Contains(string(out), "not permitted") {
					t.Errorf("%s: its memory can be read: %v, %q", who, err, out)
				}
			}
			s.echoes(t, "203.0.113.7:7")
			s.fetches(t, "https://pypi.test/", s.byName(t, "pypi.test")...)
			s.refused(t, "tcp", "203.0.113.66:22")
			s.refused(t, "udp", "203.0.113.66:22")
			s.killWorker(t)
			s.fetches(t, "https://pypi.test/", s.byName(t, "pypi.test")...)
			status, err := s.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if want := "control group"; strings.Contains(status.OwnTraffic, want) != grouped {
				t.Errorf("own traffic %q", status.OwnTraffic)
			}
		})
	}
}
