//go:build linux

package torture

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

// otherUser owns nothing here.
const otherUser = 65534

// TestOtherUsersAreRefusedByTheControlSocket, even where the file system lets them at
// it.
func TestOtherUsersAreRefusedByTheControlSocket(t *testing.T) {
	require.Root(t)
	curl := require.Tool(t, "curl")
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b := start(t, "--allow", "c.torture.test")
		open := exec.Command("sh", "-c", `p=$0; chmod 0666 "$p"; while p=$(dirname "$p"); [ "$p" != /tmp ] && [ "$p" != / ]; do chmod a+rx "$p"; done`, b.socket)
		if out, err := open.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, line := range [][]string{{"/v1/status"}, {"/v1/events"}, {"-X", "PUT", "-d", `{"policy":"public"}`, "/v1/policy"}} {
			args := append([]string{"-sS", "--max-time", "10", "-w", "\n%{http_code}", "--unix-socket", b.socket}, line[:len(line)-1]...)
			cmd := exec.Command(curl, append(args, "http://exeat"+line[len(line)-1])...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "\n403") {
				t.Errorf("%v as another user: %v, %s; want 403", line, err, out)
			}
		}
		state, err := b.Policy(t.Context())
		if err != nil || state.Generation != 1 {
			t.Errorf("generation %d, %v: somebody else swapped", state.Generation, err)
		}
	})
}

// TestTheControlSocketOutlivesAbuse: what is malformed is answered, what is oversized
// refused, what is slow let go of; and meanwhile everybody else is served.
func TestTheControlSocketOutlivesAbuse(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b := start(t, "--allow", "c.torture.test")
		for what, test := range map[string]struct {
			request string
			status  int
		}{
			"no HTTP":             {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", http.StatusBadRequest},
			"no JSON":             {put("{"), http.StatusBadRequest},
			"a policy of nothing": {put("{}"), http.StatusBadRequest},
			"JSON without end":    {put(strings.Repeat("[", 100_000)), http.StatusBadRequest},
			"an unknown member":   {put(`{"policy":"public","polciy":"public"}`), http.StatusBadRequest},
			"too large":           {"PUT /v1/policy HTTP/1.1\r\nHost: exeat\r\nContent-Length: 99999999\r\n\r\n" + strings.Repeat(" ", 17<<20), http.StatusRequestEntityTooLarge},
			"a head too large":    {"GET /v1/status HTTP/1.1\r\nHost: exeat\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		} {
			if status, err := b.raw(test.request); status != test.status {
				t.Errorf("%s: status %d, %v; want %d", what, status, err, test.status)
			}
		}
		// Slow heads take connections for ten seconds; the limit on them is 256.
		var slow []net.Conn
		for range 200 {
			conn, err := net.Dial("unix", b.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "GET /v1/status HTTP/1.1\r\nHo"); err != nil {
				t.Fatal(err)
			}
			slow = append(slow, conn)
		}
		longest := b.answers(t, func() { time.Sleep(500 * time.Millisecond) })
		report(t, "200 slow callers of the control socket", b.shape, "others waited %s at most", longest.Round(time.Millisecond))
		if longest > controlLimit*generosity {
			t.Errorf("others waited %s", longest)
		}
		began := time.Now()
		var gone sync.WaitGroup
		for _, conn := range slow {
			gone.Go(func() {
				if err := conn.SetReadDeadline(began.Add(10 * time.Second * generosity)); err != nil {
					t.Error(err)
				}
				if _, err := io.Copy(io.Discard, conn); err != nil {
					t.Errorf("a slow caller is not let go of: %v", err)
				}
			})
		}
		gone.Wait()
		report(t, "200 slow callers of the control socket", b.shape, "let go of after %s", time.Since(began).Round(time.Millisecond))
		if state, err := b.Policy(t.Context()); err != nil || state.Generation != 1 {
			t.Errorf("generation %d, %v", state.Generation, err)
		}
		b.swap(t, `"no-network"`)
	})
}

func put(body string) string {
	return fmt.Sprintf("PUT /v1/policy HTTP/1.1\r\nHost: exeat\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// raw sends bytes to the control socket and gives the status of the answer.
func (b *box) raw(request string) (int, error) {
	conn, err := net.Dial("unix", b.socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, err
	}
	// Who refuses early need not read to the end.
	written := make(chan struct{})
	go func() { defer close(written); io.WriteString(conn, request) }()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	conn.Close()
	<-written
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, nil
}

// TestAKernelThatRefusesLeavesTheOldPolicy: strace makes every netlink message of the
// deciding process fail, as a kernel without memory does.
func TestAKernelThatRefusesLeavesTheOldPolicy(t *testing.T) {
	require.Root(t)
	strace := require.Tool(t, "strace")
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		first, second := "198.51.100.200", "198.51.100.201"
		b := start(t, "--allow", first)
		// The first message that fails, and all after it: what is listed before the
		// transaction, the transaction itself, what comes after it.
		refusals := 0
		for _, fault := range []string{"sendto:error=ENOBUFS:when=1+", "sendto:error=ENOMEM:when=2+", "sendto:error=ENOBUFS:when=3+", "sendto:error=ENOMEM:when=4+"} {
			before, err := b.Policy(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tracer := exec.Command(strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace="+strings.Split(fault, ":")[0], "-e", "inject="+fault, "-p", fmt.Sprint(b.engine()))
			var said lab.Output
			tracer.Stderr = &said
			if err := tracer.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
			_, refusal := b.Swap(t.Context(), api.SwapRequest{Policy: parse(t, written("allowlist", []string{second}, nil))})
			if err := tracer.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			tracer.Wait()
			if text := said.String(); strings.Contains(text, "ptrace") {
				t.Fatalf("strace: %s", text)
			}
			after, err := b.Policy(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %v; generation %d, then %d", fault, refusal, before.Generation, after.Generation)
			inForce, other := first, second
			switch {
			case refusal == nil:
				// The swap needed fewer messages.
				inForce, other = second, first
			case after.Generation != before.Generation:
				t.Errorf("%s: refused, but in force is %+v", fault, after)
			default:
				refusals++
			}
			for target, want := range map[string]string{inForce: "1", other: "0"} {
				probe := b.job(t, "idle", "-n", "1", "-target", target)
				if open := probe.says(t, "open"); open != want {
					t.Errorf("%s: %s flows to %s, want %s", fault, open, target, want)
				}
				probe.stop(t)
			}
			if refusal == nil {
				b.swap(t, written("allowlist", []string{first}, nil))
			}
		}
		if refusals == 0 {
			t.Error("no swap was refused: the case shows nothing")
		}
	})
}
