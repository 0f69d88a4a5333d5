//go:build linux

package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
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

// affordable is how many connections the proxy says it can hold with the
// descriptors that it may open, with room for others'.
func affordable(t testing.TB) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	// The far side, one process for both shapes, takes four for each flow.
	return (int(limit.Cur) - 2048) / 8
}

// TestIdleFlowsLiveOn: ten thousand, or as many as descriptors allow for.
func TestIdleFlowsLiveOn(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, address := flooded(t, start)
		n := min(scaled(t, 1500, 10000), affordable(t))
		var idle *job
		b.strain(t, fmt.Sprintf("%d idle flows", n), name, func() {
			idle = b.job(t, "idle", "-n", fmt.Sprint(n), "-target", address)
			if open := idle.says(t, "open"); open != fmt.Sprint(n) {
				t.Errorf("%s flows of %d opened", open, n)
			}
			time.Sleep(time.Second)
		})
		if lines := idle.stop(t); lines[0] != fmt.Sprintf("alive %d", n) {
			t.Errorf("%s, want all %d", lines[0], n)
		}
	})
}

// TestSlowClientsOnEveryListener: nobody waits for them, and they are let go of.
func TestSlowClientsOnEveryListener(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, _ := flooded(t, start)
		// An address that only what is read can allow.
		read := targetsOf(b.shape, 8, 3)[1].addr.String()
		n := scaled(t, 100, 400)
		var slow []*job
		kinds := []string{"tls", "http", "dns", "silent"}
		if b.explicit != "none" {
			kinds = append(kinds, "connect")
		}
		b.strain(t, fmt.Sprintf("%d slow clients on each of %d listeners", n, len(kinds)), name, func() {
			for _, kind := range kinds {
				j := b.job(t, "slow", "-n", fmt.Sprint(n), "-kind", kind, "-target", read, "-explicit", b.explicit)
				t.Logf("%s: open %s", kind, j.says(t, "open"))
				slow = append(slow, j)
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
			// The namespace's ports are the sandbox's and ours.
			b.joined.Sh(t, "echo 32768 33767 >/proc/sys/net/ipv4/ip_local_port_range")
		}
		n := scaled(t, 6000, 30000)
		var j *job
		longest := b.answers(t, func() {
			j = b.job(t, "exhaust", "-n", fmt.Sprint(n), "-target", address+":7")
			t.Logf("open: %s", j.says(t, "open"))
			time.Sleep(time.Second)
		})
		_, peak := b.memory(t)
		report(t, "descriptors and ports exhausted", b.shape, "control socket at most %s, memory at most %d MiB", longest.Round(time.Millisecond), peak>>20)
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
		if logged > uint64(n) {
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
