//go:build linux

package torture

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/policy"
)

// The documented limits (docs/limits.md). Times are gated ten times as generously:
// the machine is not ours alone.
const (
	memoryLimit  = 256 << 20
	controlLimit = time.Second
	generosity   = 10
)

// flooded starts a sandbox that may reach a name and, through the proxy, an address.
func flooded(t *testing.T, start func(testing.TB, ...string) *box) (b *box, name, address string) {
	t.Helper()
	for _, shape := range []string{"sealed", "joined"} {
		targetsOf(shape, 8, 3)
	}
	b = start(t, "--allow", "*.torture.test", "--deny", "nobody.torture.test", "--allow", "198.51.100.0/24")
	targets := targetsOf(b.shape, 8, 3)
	return b, targets[0].name, targets[8].addr.String()
}

// strain runs a flood, beside allowed traffic and calls to the control socket, and
// holds all three to their limits.
func (b *box) strain(t *testing.T, what, name string, flood func()) {
	t.Helper()
	allowed := b.job(t, "fetches", "-n", "2", "-target", name)
	allowed.says(t, "rate") // the first is a beginning
	before := allowed.rates(t, 4)
	var lasted time.Duration
	longest := b.answers(t, func() {
		allowed.drain()
		began := time.Now()
		flood()
		lasted = time.Since(began)
	})
	during := allowed.drain()
	allowed.stop(t)
	_, peak := b.memory(t)
	report(t, what, b.shape, "control socket at most %s, memory at most %d MiB, allowed traffic %s, for %s",
		longest.Round(time.Millisecond), peak>>20, share(before, during), lasted.Round(time.Millisecond))
	if longest > controlLimit*generosity {
		t.Errorf("the control socket took %s", longest)
	}
	if peak > memoryLimit {
		t.Errorf("memory grew to %d MiB, the limit is %d", peak>>20, memoryLimit>>20)
	}
	if len(during) > 4 && mean(during) == 0 {
		t.Error("allowed traffic stood still")
	}
}

// rates collects n of what a fetches job says.
func (j *job) rates(t testing.TB, n int) (rates []int) {
	for range n {
		var rate int
		fmt.Sscan(j.says(t, "rate"), &rate)
		rates = append(rates, rate)
	}
	return rates
}

// drain gives the rates that were said since the last time.
func (j *job) drain() (rates []int) {
	for {
		select {
		case line := <-j.lines:
			var rate int
			if _, err := fmt.Sscanf(line, "rate %d", &rate); err == nil {
				rates = append(rates, rate)
			}
		default:
			return rates
		}
	}
}

func mean(rates []int) int {
	sum := 0
	for _, r := range rates {
		sum += r
	}
	return sum / max(1, len(rates))
}

func share(before, during []int) string {
	if len(during) == 0 {
		return "not measured: it was over too soon"
	}
	return fmt.Sprintf("%d%% (%d of %d requests a second)", 100*mean(during)/max(1, mean(before)), mean(during), mean(before))
}

// TestIdleFlowsLiveOn: ten thousand, or as many as the proxy has descriptors for; what
// is over that is reset, which the log says, and nothing else suffers.
func TestIdleFlowsLiveOn(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, address := flooded(t, start)
		n, most := scaled(t, 1500, 10000), affordable(t)
		what := fmt.Sprintf("%d idle flows through the proxy", n)
		var idle []*job
		open, alive := 0, 0
		b.strain(t, what, name, func() {
			idle, open = b.crowd(t, n, address)
			time.Sleep(time.Second)
		})
		// The first to end make room.
		for _, j := range idle[1:] {
			alive += j.stillAlive(t)
		}
		b.answersAllowed(t, address)
		alive += idle[0].stillAlive(t)
		full := uint64(0)
		lab.Eventually(t, "those that there was no room for in the log", func() bool {
			full = sumLogged(t, b, func(e audit.Event) bool { return e.Reason == policy.ReasonLimit })
			return open+int(full) >= n
		})
		report(t, what, b.shape, "%d opened (there is room for %d), %d of them alive at the end; %d refused with reason limit in the log; a new connection afterwards works", open, most, alive, full)
		switch {
		case alive != open:
			t.Errorf("%d of %d are alive", alive, open)
		case n <= most-100 && open != n:
			t.Errorf("%d of %d opened, there is room for %d", open, n, most)
		case n > most && (open > most || open < most-100):
			t.Errorf("%d opened, there is room for %d", open, most)
		}
	})
}

// affordable is how many connections the proxy can hold with the descriptors that it
// may open (docs/limits.md).
func affordable(t testing.TB) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return min(16384, (int(limit.Cur)-2048)/3)
}

// TestIdleFlowsStraightOut take no descriptor of ours: with no denied name in force,
// flows to an allowed address do not pass through the proxy.
func TestIdleFlowsStraightOut(t *testing.T) {
	lab.NeedWorld(t)
	targets := targetsOf("joined", 8, 3)
	b := startJoined(t, "--allow", "*.torture.test", "--allow", "198.51.100.0/24")
	n := scaled(t, 1500, 10000)
	what := fmt.Sprintf("%d idle flows straight out", n)
	descriptors := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.engine()))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before, during, open, alive := descriptors(), 0, 0, 0
	var idle []*job
	b.strain(t, what, targets[0].name, func() {
		idle, open = b.crowd(t, n, targets[8].addr.String())
		during = descriptors()
		time.Sleep(time.Second)
	})
	for _, j := range idle {
		alive += j.stillAlive(t)
	}
	report(t, what, b.shape, "%d opened, %d of them alive at the end; %d descriptors more of ours", open, alive, during-before)
	if open != n || alive != n || during-before > n/10 {
		t.Errorf("%d of %d opened, %d alive, %d descriptors before and %d during", open, n, alive, before, during)
	}
}

// TestSlowClientsOnEveryListener: nobody waits for them, and they are let go of.
func TestSlowClientsOnEveryListener(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, _ := flooded(t, start)
		// An address that only what is read can allow.
		read := targetsOf(b.shape, 8, 3)[1].addr.String()
		n := scaled(t, 100, 400)
		var slow []*job
		var kinds []string
		explicit := b.explicitProxies(t)
		b.strain(t, fmt.Sprintf("%d slow clients of each kind on each listener", n), name, func() {
			for _, at := range []struct{ family, target string }{{"IPv4", read}, {"IPv6", "2001:db8::77"}} {
				for _, kind := range []string{"tls", "http", "dns", "silent", "connect"} {
					args := []string{"slow", "-n", fmt.Sprint(n), "-kind", kind, "-target", at.target}
					if kind == "connect" {
						if explicit[at.family] == "" {
							continue
						}
						args = append(args, "-explicit", explicit[at.family])
					}
					j := b.job(t, args...)
					if open := j.says(t, "open"); open != fmt.Sprintf("%d refused 0", n) {
						t.Errorf("%s over %s: open %s", kind, at.family, open)
					}
					slow, kinds = append(slow, j), append(kinds, kind+" over "+at.family)
				}
			}
			time.Sleep(2 * time.Second)
		})
		for i, j := range slow {
			var longest int
			fmt.Sscan(j.says(t, "longest"), &longest)
			report(t, "a slow client of "+kinds[i], b.shape, "let go of after %d ms at most", longest)
			if longest > 10_000*generosity {
				t.Errorf("%s held on for %d ms", kinds[i], longest)
			}
		}
	})
}

// explicitProxies are the addresses of the explicit proxy, by family: the sealed shape
// tells its command of one, in the joined one they are found as an agent would.
func (b *box) explicitProxies(t *testing.T) map[string]string {
	t.Helper()
	if b.joined == nil {
		return map[string]string{"IPv4": b.explicit}
	}
	found := map[string]string{}
	for _, address := range strings.Fields(b.joined.Sh(t, "ss -Hltn | awk '{print $4}'")) {
		if b.joined.speaksHTTP(address) {
			family := "IPv4"
			if strings.HasPrefix(address, "[") {
				family = "IPv6"
			}
			found[family] = address
		}
	}
	if len(found) == 0 {
		t.Error("no explicit proxy found")
	}
	return found
}

// speaksHTTP says whether what listens there refuses a request that is for no proxy.
func (s *sidecar) speaksHTTP(address string) bool {
	conn, err := s.Dial("tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	err = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if err == nil {
		_, err = io.WriteString(conn, "GET /nowhere HTTP/1.1\r\nHost: nowhere\r\n\r\n")
	}
	if err != nil {
		return false
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	return err == nil && answer.StatusCode >= 400
}

// TestConnectionsThatAreGivenUp opens and resets connections without a word.
func TestConnectionsThatAreGivenUp(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, address := flooded(t, start)
		n := scaled(t, 3000, 50000)
		b.strain(t, fmt.Sprintf("%d connections opened and reset", n), name, func() {
			for _, port := range []string{"7", "443"} {
				j := b.job(t, "giveup", "-n", fmt.Sprint(n/2), "-target", address+":"+port)
				if opened := j.says(t, "opened"); opened == "0" {
					t.Errorf("none of %d opened", n)
				}
			}
		})
		lab.Eventually(t, "the end of every flow", func() bool {
			flows, err := b.Flows(t.Context())
			return err == nil && len(flows) == 0
		})
	})
}

// TestAnAgentThatTakesEveryDescriptorAndPort harms itself; what it gave back can be
// used again.
func TestAnAgentThatTakesEveryDescriptorAndPort(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, _, address := flooded(t, start)
		if b.joined != nil {
			// The namespace's ports are the sandbox's and ours. (In the sealed shape a
			// process has fewer descriptors than there are ports.)
			b.joined.Sh(t, "echo 32768 33767 >/proc/sys/net/ipv4/ip_local_port_range")
		}
		n := scaled(t, 6000, 30000)
		var j *job
		var open string
		longest := b.answers(t, func() {
			j = b.job(t, "exhaust", "-n", fmt.Sprint(n), "-target", address+":7")
			open = j.says(t, "open")
			time.Sleep(time.Second)
		})
		_, peak := b.memory(t)
		report(t, "descriptors and ports exhausted", b.shape, "%s of %d connections open, control socket at most %s, memory at most %d MiB", open, n, longest.Round(time.Millisecond), peak>>20)
		if longest > controlLimit*generosity || peak > memoryLimit {
			t.Errorf("the control socket took %s, memory grew to %d MiB", longest, peak>>20)
		}
		j.stop(t)
		b.answersAllowed(t, address)
	})
}

// TestDistinctDeniedNamesAreCountedAndLogged, however many.
func TestDistinctDeniedNamesAreCountedAndLogged(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, _ := flooded(t, start)
		n := scaled(t, 10000, 100000)
		b.strain(t, fmt.Sprintf("%d distinct denied names", n), name, func() {
			said := b.job(t, "names", "-n", fmt.Sprint(n)).says(t, "denied")
			if want := fmt.Sprintf("%d answered 0 lost 0", n); said != want {
				t.Errorf("denied %s, want %s", said, want)
			}
		})
		summary, err := b.Summary(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		counted := uint64(0)
		for _, c := range summary.Counts {
			if c.Verdict == policy.Deny {
				counted += c.Count
			}
		}
		if counted < uint64(n) {
			t.Errorf("%d denials are counted, want at least %d, in %d lines", counted, n, len(summary.Counts))
		}
		// Over the rate that the log may grow by, lines stand for names of one reason.
		match := func(e audit.Event) bool {
			return strings.HasSuffix(e.Name, ".flood.test") || e.Name == "" && !e.Addr.IsValid() && e.Verdict == policy.Deny && e.Folded > 0
		}
		logged := uint64(0)
		lab.Eventually(t, "the whole flood in the log", func() bool { logged = sumLogged(t, b, match); return logged >= uint64(n) })
		// What the kernel says by itself (router solicitations) is denied, too.
		if logged > uint64(n+n/1000) {
			t.Errorf("the log accounts for %d denials, want %d", logged, n)
		}
		t.Logf("%d lines of summary", len(summary.Counts))
	})
}

// sumLogged adds up what the log's decisions stand for.
func sumLogged(t testing.TB, b *box, match func(audit.Event) bool) (n uint64) {
	t.Helper()
	for line := range strings.Lines(b.log()) {
		var e audit.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Kind == audit.KindDecision && match(e) {
			n += max(e.Folded, 1)
		}
	}
	return n
}

// TestThePolicyOfTheLargestSizeTenTimesASecond.
func TestThePolicyOfTheLargestSizeTenTimesASecond(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, _ := flooded(t, start)
		document := largest(t)
		var mu sync.Mutex
		outcomes := map[string]int{}
		var longest time.Duration
		b.strain(t, fmt.Sprintf("a policy of %d bytes, 10 times a second", len(document)), name, func() {
			var work sync.WaitGroup
			for range 10 * scaled(t, 2, 20) {
				work.Go(func() {
					began := time.Now()
					outcome := b.put(t, document)
					mu.Lock()
					defer mu.Unlock()
					outcomes[outcome]++
					longest = max(longest, time.Since(began))
				})
				time.Sleep(100 * time.Millisecond)
			}
			work.Wait()
			// However slow the machine, one is in force while another comes.
			for range 3 {
				lab.Eventually(t, "a swap to the largest policy", func() bool { return b.put(t, document) == "200 OK" })
			}
		})
		t.Logf("%v, the longest took %s", outcomes, longest.Round(time.Millisecond))
	})
}

// largest is a policy of just under 16 MiB, which allows what flooded allows.
func largest(t testing.TB) []byte {
	var text bytes.Buffer
	text.WriteString(`{"network_mode":"allowlist","denied_hosts":["nobody.torture.test"],"allowed_hosts":["*.torture.test","198.51.100.0/24"`)
	for i := 0; text.Len() < 16<<20-200; i++ {
		fmt.Fprintf(&text, `,"%s-%d.filler.test"`, strings.Repeat("x", 40), i)
	}
	text.WriteString("]}")
	return text.Bytes()
}

// put swaps without reading the document here, and says what was answered.
func (b *box) put(t testing.TB, document []byte) string {
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", b.socket)
		},
		DisableKeepAlives: true,
	}}
	body := io.MultiReader(strings.NewReader(`{"policy":`), bytes.NewReader(document), strings.NewReader("}"))
	request, err := http.NewRequest(http.MethodPut, "http://exeat/v1/policy", body)
	if err != nil {
		t.Error(err)
		return err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return oneWord(err)
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, 300))
	if answer.StatusCode != http.StatusOK || err != nil {
		return fmt.Sprintf("%s %.120s", answer.Status, said)
	}
	return answer.Status
}

func oneWord(err error) string {
	text := err.Error()
	return text[strings.LastIndex(text, ": ")+1:]
}
