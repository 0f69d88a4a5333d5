//go:build linux

package joined

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

// dialTimeout bounds every connection; atOnce is what a denial may take.
const (
	dialTimeout = 3 * time.Second
	atOnce      = 50 * time.Millisecond
)

// noResolver among the flags keeps the world's resolver from them.
const noResolver = "no resolver"

// sidecar is an exeatd that runs.
type sidecar struct {
	*namespace
	*client.Client
	cmd    *exec.Cmd
	dir    string
	socket string
	wrap   []string // what starts exeatd, if not we
	flags  []string
	env    []string
	stdout output
	stderr output
	ended  chan error
}

// output is what a process wrote, while it writes on.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts exeatd in a namespace of its own and waits until it is ready.
func start(t testing.TB, flags ...string) *sidecar {
	t.Helper()
	s := prepare(t, flags...)
	s.begin(t)
	s.awaitReady(t)
	return s
}

// prepare makes a sidecar that is not started yet.
func prepare(t testing.TB, flags ...string) *sidecar {
	t.Helper()
	s := &sidecar{namespace: newNamespace(t), dir: t.TempDir()}
	s.socket = filepath.Join(s.dir, "control.sock")
	s.flags = append([]string{"--control", s.socket, "--resolver", "203.0.113.53"}, flags...)
	if slices.Contains(flags, noResolver) {
		s.flags = slices.DeleteFunc(append(s.flags[:2:2], flags...), func(f string) bool { return f == noResolver })
	}
	s.Client = client.New(s.socket)
	t.Cleanup(func() {
		s.Client.Close()
		if t.Failed() {
			t.Logf("exeatd wrote:\n%s\n%s", s.stderr.String(), tail(s.stdout.String(), 4000))
		}
	})
	return s
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// begin starts the process.
func (s *sidecar) begin(t testing.TB) {
	t.Helper()
	line := append(append(s.wrap[:len(s.wrap):len(s.wrap)], binary), s.flags...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, s.env...)
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
		if err := cmd.Process.Kill(); err == nil {
			<-ended
			awaitEmpty(t, s.group)
		}
	})
}

// awaitEmpty waits until a killed keeper's worker is gone too.
func awaitEmpty(t testing.TB, group *os.File) {
	if group == nil {
		return
	}
	eventually(t, "the end of the worker", func() bool {
		left, err := os.ReadFile(group.Name() + "/cgroup.procs")
		return err != nil || len(left) == 0
	})
}

func (s *sidecar) awaitReady(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
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
			if err := s.cmd.Process.Signal(syscall.SIGQUIT); err == nil { // its stacks
				<-s.ended
				s.ended <- nil
			}
			var refused *api.Error
			if errors.As(err, &refused) {
				t.Fatalf("not ready: %v %v", err, refused.Problems)
			}
			t.Fatalf("not ready: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// eventually waits for something to become true.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: waited for it in vain", what)
		}
	}
}

// keeper and worker are process ids.
func (s *sidecar) keeper() int { return s.cmd.Process.Pid }

func (s *sidecar) worker(t testing.TB) int {
	t.Helper()
	pid := s.findWorker()
	if pid == 0 {
		t.Fatal("no worker runs")
	}
	return pid
}

func (s *sidecar) findWorker() (pid int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.keeper()))
	if err == nil {
		_, err = fmt.Sscan(string(data), &pid)
	}
	if err == nil {
		return pid
	}
	// The thread that starts workers need not be the first.
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.keeper()))
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

// swap puts a policy in force.
func (s *sidecar) swap(t testing.TB, document string) api.SwapResult {
	t.Helper()
	d := mustParse(t, document)
	result, err := s.Swap(t.Context(), api.SwapRequest{Policy: &d})
	if err != nil {
		t.Fatalf("swap to %s: %v", document, err)
	}
	return result
}

func mustParse(t testing.TB, document string) policy.Document {
	t.Helper()
	var d policy.Document
	if err := d.UnmarshalJSON([]byte(document)); err != nil {
		t.Fatal(err)
	}
	return d
}

// refused says that an address is refused to the sandbox, at once.
func (s *sidecar) refused(t testing.TB, network, address string) {
	t.Helper()
	var err error
	took := time.Hour
	for range 3 { // the best of which is not the machine's
		var once time.Duration
		if once, err = s.try(network, address); err == nil || once < atOnce {
			took = min(took, once)
			break
		}
		took = min(took, once)
	}
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		t.Errorf("%s %s: %v, want it refused", network, address, err)
	}
	if took > atOnce {
		t.Errorf("%s %s: refused after %s, want at once", network, address, took)
	}
}

// try sends to an address, and says how long that took.
func (s *sidecar) try(network, address string) (took time.Duration, err error) {
	err = s.in(func() error {
		began := time.Now()
		defer func() { took = time.Since(began) }()
		conn, err := net.DialTimeout(network, address, dialTimeout)
		if err != nil {
			return err
		}
		defer conn.Close()
		if strings.HasPrefix(network, "udp") {
			_, err = conn.Write([]byte("hello"))
		}
		return err
	})
	return took, err
}

// echoes says that an address is reached: what it is sent comes back.
func (s *sidecar) echoes(t testing.TB, address string) {
	t.Helper()
	conn, err := s.dial("tcp", address)
	if err != nil {
		t.Errorf("%s: %v", address, err)
		return
	}
	defer conn.Close()
	if err := exchange(conn); err != nil {
		t.Errorf("%s: %v", address, err)
	}
}

// exchange sends a line to an echo service and wants it back.
func exchange(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "ping\n"); err != nil {
		return err
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != "ping\n" {
		return fmt.Errorf("echo of %q", got)
	}
	return nil
}

// resolve asks for a name as the sandbox does; server is whom it means to ask.
func (s *sidecar) resolve(t testing.TB, name string, qtype uint16, server string) *dns.Msg {
	t.Helper()
	conn, err := s.dial("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	ctx, cancel := context.WithTimeout(t.Context(), dialTimeout)
	defer cancel()
	answer, _, err := new(dns.Client).ExchangeWithConnContext(ctx, question, &dns.Conn{Conn: conn})
	if err != nil {
		t.Errorf("ask for %s: %v", name, err)
		return new(dns.Msg)
	}
	return answer
}

// curl fetches a URL from the sandbox; the answer is the body, or what curl said.
func (s *sidecar) curl(t testing.TB, args ...string) (body string, ok bool) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := s.in(func() error {
		cmd := exec.Command("curl", append([]string{"-sS", "--max-time", "5", "--cacert", world.CAFile()}, args...)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		return cmd.Run()
	})
	if err != nil {
		return stderr.String(), false
	}
	return stdout.String(), true
}
