//go:build linux

package torture

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/policy"
)

// box is a sandbox with an agent in it, in either shape.
type box struct {
	*client.Client
	shape    string
	socket   string
	explicit string // the address of the explicit proxy
	link     string // that the far side's tap listens on
	engine   func() int
	log      func() string // what was written to the log
	stderr   *lab.Output
	cmd      *exec.Cmd // the sealed shape's exeat; the joined one's exeatd
	joined   *sidecar  // nil in the sealed shape

	stdin io.WriteCloser
	mu    sync.Mutex
	jobs  map[string]chan string
	ids   int
}

// made numbers the boxes.
var made atomic.Uint32

// startSealed starts `exeat run` with the agent as its command.
func startSealed(t testing.TB, flags ...string) *box {
	t.Helper()
	lab.NeedWorld(t)
	name := "torture-" + strconv.Itoa(int(made.Add(1)))
	dir := t.TempDir()
	log := filepath.Join(dir, "log.jsonl")
	args := append([]string{"run", "--quiet", "--resolver", "203.0.113.53", "--name", name, "--log", log, "--proxy-env"}, flags...)
	cmd := exec.Command(exeat, append(args, "--", "sh", "-c", `echo "$HTTP_PROXY"; exec "$0"`, agent)...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	b := &box{
		shape: "sealed", socket: filepath.Join(dir, "exeat", name+".sock"), link: "lo", cmd: cmd,
		engine: func() int { return cmd.Process.Pid },
		log:    func() string { return readLog(t, log) },
		stderr: new(lab.Output),
	}
	cmd.Stderr = b.stderr
	b.begin(t, cmd)
	b.Client = client.New(b.socket)
	t.Cleanup(b.Client.Close)
	return b
}

// readLog reads a log and what was set aside of it, oldest first.
func readLog(t testing.TB, path string) string {
	var all strings.Builder
	for i := 4; i >= 0; i-- {
		name := path
		if i > 0 {
			name += "." + strconv.Itoa(i)
		}
		if data, err := os.ReadFile(name); err == nil {
			all.Write(data)
		}
	}
	return all.String()
}

// startJoined starts exeatd in a namespace of its own, and the agent beside it.
func startJoined(t testing.TB, flags ...string) *box {
	t.Helper()
	s := prepare(t, flags...)
	s.Begin(t)
	s.AwaitReady(t)
	b := &box{
		Client: s.Client, shape: "joined", socket: s.Socket, link: s.Far, cmd: s.Cmd, joined: s,
		engine: func() int { return s.Worker(t) },
		log:    s.Stdout.String,
		stderr: &s.Stderr,
	}
	b.enter(t)
	return b
}

// enter starts an agent in the joined namespace.
func (b *box) enter(t testing.TB) {
	cmd := exec.Command("sh", "-c", `echo none; exec "$0"`, agent)
	cmd.Stderr = os.Stderr
	b.begin(t, cmd)
}

// begin starts the process that holds the agent, and hears the agent.
func (b *box) begin(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	b.jobs = map[string]chan string{}
	var err error
	if b.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start := cmd.Start
	if b.joined != nil {
		start = func() error { return b.joined.In(cmd.Start) }
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the agent does not begin: %v\n%s", err, b.stderr)
	}
	b.explicit = strings.TrimPrefix(strings.TrimSpace(first), "http://")
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		b.hear(lines)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stderr of exeat:\n%s", lab.Tail(b.stderr.String(), 4000))
		}
		if err := cmd.Process.Kill(); err == nil {
			<-heard
			cmd.Wait()
		}
	})
}

// hear gives each line of the agent to its job.
func (b *box) hear(lines *bufio.Reader) {
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		id, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		b.mu.Lock()
		job := b.jobs[id]
		if text == "done" || strings.HasPrefix(text, "done ") {
			delete(b.jobs, id)
		}
		b.mu.Unlock()
		if job == nil {
			continue
		}
		job <- text
		if text == "done" || strings.HasPrefix(text, "done ") {
			close(job)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, job := range b.jobs {
		close(job)
		delete(b.jobs, id)
	}
}

// job is one thing that the agent does.
type job struct {
	b     *box
	id    string
	lines chan string
}

// job makes the agent begin something.
func (b *box) job(t testing.TB, args ...string) *job {
	t.Helper()
	b.mu.Lock()
	b.ids++
	j := &job{b: b, id: strconv.Itoa(b.ids), lines: make(chan string, 1<<16)}
	b.jobs[j.id] = j.lines
	b.mu.Unlock()
	j.tell(t, strings.Join(args, " "))
	return j
}

func (j *job) tell(t testing.TB, words string) {
	t.Helper()
	if _, err := io.WriteString(j.b.stdin, j.id+" "+words+"\n"); err != nil {
		t.Fatalf("tell the agent: %v\n%s", err, lab.Tail(j.b.stderr.String(), 2000))
	}
}

// says waits for a line that begins with a word and gives the rest.
func (j *job) says(t testing.TB, word string) string {
	t.Helper()
	late := time.After(3 * time.Minute)
	failed := map[string]int{}
	for {
		select {
		case line, ok := <-j.lines:
			if rest, is := strings.CutPrefix(line, word+" "); is {
				return rest
			}
			if !ok || strings.HasPrefix(line, "done") {
				t.Fatalf("the agent ended (%q) without saying %q", line, word)
			}
			if strings.HasPrefix(line, "failed ") {
				failed[line]++
			} else {
				t.Logf("agent: %s", line)
			}
		case <-late:
			status, err := j.b.Status(t.Context())
			t.Logf("exeat says %+v, %v; its log:\n%s", status, err, lab.Tail(j.b.log(), 4000))
			t.Fatalf("the agent does not say %q, but %v", word, failed)
		}
	}
}

// stop ends the job and gives what it had said besides.
func (j *job) stop(t testing.TB) []string {
	t.Helper()
	j.tell(t, "stop")
	return j.rest(t)
}

// rest waits for the job's end.
func (j *job) rest(t testing.TB) (lines []string) {
	t.Helper()
	late := time.After(3 * time.Minute)
	for {
		select {
		case line, ok := <-j.lines:
			if !ok {
				return lines
			}
			lines = append(lines, line)
		case <-late:
			t.Fatal("the agent does not end a job")
		}
	}
}

// swap puts a policy in force.
func (b *box) swap(t testing.TB, document string) api.SwapResult {
	t.Helper()
	result, err := b.Swap(t.Context(), api.SwapRequest{Policy: parse(t, document)})
	if err != nil {
		t.Fatalf("swap to %.200s: %v", document, err)
	}
	return result
}

func parse(t testing.TB, document string) *policy.Document {
	t.Helper()
	d, _, err := policy.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return &d
}

// memory is the resident memory of the process that decides, in bytes.
func (b *box) memory(t testing.TB) (now, peak int64) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.engine()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			fmt.Sscan(rest, &now)
		}
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			fmt.Sscan(rest, &peak)
		}
	}
	return now << 10, peak << 10
}

// tracked is how many flows the namespace of the joined shape tracks; the sealed
// one's tracks none.
func (b *box) tracked(t testing.TB) (flows int) {
	t.Helper()
	if b.joined == nil {
		return 0
	}
	var text []byte
	err := b.joined.In(func() (err error) {
		text, err = os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		return err
	})
	if err == nil {
		_, err = fmt.Sscan(string(text), &flows)
	}
	if err != nil {
		t.Error(err)
	}
	return flows
}

// serveDatagrams echoes UDP on every address of the little internet.
func serveDatagrams(address string) (stop func() error, err error) {
	conn, err := net.ListenPacket("udp4", address)
	if err != nil {
		return nil, err
	}
	var work sync.WaitGroup
	work.Go(func() {
		udp := conn.(*net.UDPConn)
		buf, oob := make([]byte, 2048), make([]byte, 128)
		for {
			n, oobn, _, from, err := udp.ReadMsgUDPAddrPort(buf, oob)
			if err != nil {
				return
			}
			// From the address that was asked, which IP_PKTINFO told.
			if _, _, err := udp.WriteMsgUDPAddrPort(buf[:n], oob[:oobn], from); err != nil {
				continue
			}
		}
	})
	if err := packetInfo(conn.(*net.UDPConn)); err != nil {
		return nil, err
	}
	return func() error {
		err := conn.Close()
		work.Wait()
		return err
	}, nil
}

// both runs a test in each shape.
func both(t *testing.T, test func(t *testing.T, start func(testing.TB, ...string) *box)) {
	t.Run("sealed", func(t *testing.T) {
		t.Parallel()
		test(t, startSealed)
	})
	t.Run("joined", func(t *testing.T) {
		t.Parallel()
		require.Root(t)
		test(t, startJoined)
	})
}

// answers says how long the control socket takes at most while f runs.
func (b *box) answers(t testing.TB, f func()) (longest time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan time.Duration)
	go func() {
		var longest time.Duration
		for ctx.Err() == nil {
			began := time.Now()
			if _, err := b.Status(context.WithoutCancel(ctx)); err != nil {
				t.Errorf("the control socket: %v", err)
				break
			}
			longest = max(longest, time.Since(began))
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		done <- longest
	}()
	f()
	cancel()
	return <-done
}
