//go:build linux

package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/policy"
)

// TestRandomSwapsAmongLiveFlows swaps among random policies while flows of each
// kind live. At the far side a tap must see no byte to or from a target between the
// answer to a swap that forbids it and the request of one that allows it; and no
// flow may end that no policy forbade in its life.
func TestRandomSwapsAmongLiveFlows(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		// Of each kind there are as many.
		swaps, flows := scaled(t, 300, 10000), scaled(t, 50, 200*everyKind)
		seed := seeded(t)
		t.Logf("%d swaps among %d flows, seed %d", swaps, flows, seed)
		var so progress
		tracked := 0
		r := rand.New(rand.NewPCG(seed, 0))
		b := start(t, "--mode", "no-network")
		targets := targetsOf(b.shape, 8, 3)
		h := newHistory(targets, stance{allowed: make([]bool, len(targets))})
		tapped := openTap(t, b.link, addrsOf(targets))
		agent := b.job(t, flowArgs(b, targets, flows)...)
		w := &watcher{history: h, targets: targets}
		heard := make(chan struct{})
		go func() { defer close(heard); w.hear(agent) }()
		began, done := time.Now(), 0
		var lockdowns int
		var generation uint64
		for ; done < swaps; done++ {
			if done > 0 && time.Since(began) > budget(t) {
				t.Logf("%d swaps are enough for a machine as slow or as busy as this", done)
				break
			}
			so.say(t, "%d swaps", done)
			next := randomStance(r, targets, b.shape == "joined")
			asked := time.Now().UnixNano()
			result := b.swap(t, next.document)
			answered := time.Now().UnixNano()
			if generation++; done > 0 && result.Generation != generation {
				// Nothing but a breach changes the policy besides us.
				lockdowns++
				w.lockedDown(t, result.Generation-generation, asked, answered)
			}
			generation = result.Generation
			w.mu.Lock()
			h.swapped(targets, next, asked, answered)
			w.mu.Unlock()
			time.Sleep(time.Duration(r.ExpFloat64() * float64(20*time.Millisecond)))
			if done%100 == 99 {
				// So that flows of every kind come to be, and the taps' memory stays small.
				time.Sleep(200 * time.Millisecond)
				w.judge(t, tapped.taken(), time.Now().Add(-100*time.Millisecond).UnixNano())
				tracked = max(tracked, b.tracked(t))
			}
		}
		asked := time.Now().UnixNano()
		none := stance{document: `"no-network"`, allowed: make([]bool, len(targets))}
		b.swap(t, none.document)
		w.mu.Lock()
		h.swapped(targets, none, asked, time.Now().UnixNano())
		w.mu.Unlock()
		time.Sleep(500 * time.Millisecond)
		if left, err := b.Flows(t.Context()); err != nil || len(left) > 0 {
			t.Errorf("%d flows are left under no-network, %v", len(left), err)
		}
		w.judge(t, tapped.seen(t), forever)
		agent.tell(t, "stop")
		<-heard
		w.report(t, kindsOf(b))
		report(t, fmt.Sprintf("%d swaps among %d flows of %d kinds", done, flows, everyKind), b.shape,
			"%d bytes at the far side, %d of them forbidden; %d flows opened, %d cut without cause; %d times denied everything without being asked; at most %d flows tracked; seed %d",
			w.bytes, w.leaked, w.all(), w.cut, lockdowns, tracked, seed)
		logged := b.log()
		breaches := 0
		for line := range strings.Lines(logged) {
			if !strings.Contains(line, `"kind":"breach"`) {
				continue
			}
			if breaches++; breaches <= 5 {
				t.Errorf("the log: %s", line)
			}
		}
		for _, e := range w.faults {
			t.Logf("the log of that time:%s", linesBetween(logged, e.target, e.opened, e.seen))
		}
	})
}

func addrsOf(targets []target) (all []netip.Addr) {
	for _, t := range targets {
		all = append(all, t.addr)
	}
	return all
}

// all is how many flows opened.
func (w *watcher) all() (n int) {
	for _, opened := range w.opened {
		n += opened
	}
	return n
}

// everyKind is how many kinds of flow each shape knows.
const everyKind = 6

// kindsOf are the kinds of flow that the shape knows.
func kindsOf(b *box) []string {
	if b.joined != nil {
		return []string{"tls", "http", "h2c", "opaque", "direct", "udp"}
	}
	return []string{"tls", "http", "h2c", "opaque", "connect", "direct"}
}

func flowArgs(b *box, targets []target, n int) []string {
	var names, addresses []string
	for _, t := range targets {
		if t.isAddress() {
			addresses = append(addresses, t.name)
		} else {
			names = append(names, t.name)
		}
	}
	// So many exchanges a second in all: a flow more often would be the machine's load,
	// not ours.
	const exchanges = 1000
	every := max(50*time.Millisecond, time.Duration(n)*time.Second/exchanges)
	args := []string{"flows", "-n", fmt.Sprint(n), "-every", every.String(), "-names", strings.Join(names, ","), "-addresses", strings.Join(addresses, ",")}
	if b.joined != nil {
		return append(args, "-kinds", "tls,http,h2c,opaque", "-address-kinds", "direct,udp")
	}
	return append(args, "-explicit", b.explicit)
}

// watcher holds what the agent and the taps see against the history.
type watcher struct {
	targets []target

	mu      sync.Mutex
	history *history
	ended   []ended
	opened  map[string]int
	failed  map[string]int
	kept    []segment // not judged yet
	faults  []ended
	bytes   int
	leaked  int
	cut     int
	cuts    map[string]int // by kind and error
}

// ended is a flow that the agent saw end.
type ended struct {
	line               string
	kind, target       string
	opened, last, seen int64
}

// hear reads what the agent says of its flows.
func (w *watcher) hear(agent *job) {
	w.opened, w.failed = map[string]int{}, map[string]int{}
	for line := range agent.lines {
		var id int
		var e ended
		w.mu.Lock()
		if n, err := fmt.Sscanf(line, "open %d %s %s %d", &id, &e.kind, &e.target, &e.opened); n == 4 && err == nil {
			w.opened[e.kind]++
		} else if rest, failed := strings.CutPrefix(line, "failed "); failed {
			words := strings.SplitN(rest, " ", 3)
			w.failed[words[0]+": "+reason(words[2])]++
		} else if n, _ := fmt.Sscanf(line, "end %d %s %s %d %d %d", &id, &e.kind, &e.target, &e.opened, &e.last, &e.seen); n == 6 {
			e.line = line
			w.ended = append(w.ended, e)
		}
		w.mu.Unlock()
	}
}

// reason is the end of an error, which does not name who it was about.
func reason(text string) string {
	text, _, _ = strings.Cut(text[strings.LastIndex(text, ": ")+1:], " (decision")
	return text
}

// judge holds the segments up to a moment, and the flows that ended, against the
// history, which must be complete until then.
func (w *watcher) judge(t *testing.T, more []segment, until int64) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var later []segment
	leaks := 0
	for _, s := range append(w.kept, more...) {
		if s.at > until {
			later = append(later, s)
			continue
		}
		w.bytes += int(s.bytes)
		// What the far side sent before it heard of the end is refused at the sandbox's
		// own door; the sealed shape's end is on the loopback and hears at once.
		if overlaps(w.history.forbidden[s.peer], s.at, s.at) && (s.out || w.sealed()) {
			w.leaked += int(s.bytes)
			if leaks++; leaks <= 5 {
				t.Errorf("%d bytes (out: %v) of %s at %d, while it was forbidden: %s", s.bytes, s.out, s.peer, s.at, around(w.history.forbidden[s.peer], s.at))
			}
		}
	}
	w.kept = later
	addrs := map[string]netip.Addr{}
	for _, target := range w.targets {
		addrs[target.name] = target.addr
	}
	for _, e := range w.ended {
		if overlaps(w.history.loose[addrs[e.target]], e.opened, e.seen) ||
			e.kind == "direct" && overlaps(w.history.shown, e.opened, e.seen) {
			continue
		}
		if w.cuts == nil {
			w.cuts = map[string]int{}
		}
		w.cuts[e.kind+": "+reason(e.line)]++
		if w.cut++; w.cut <= 5 {
			t.Errorf("a flow was cut that nothing forbade in its %s: %s%s", time.Duration(e.seen-e.opened), e.line, w.history.during(e.opened, e.seen))
			w.faults = append(w.faults, e)
		}
	}
	w.ended = nil
}

// lockedDown complains that the policy was changed by somebody besides the test.
func (w *watcher) lockedDown(t *testing.T, times uint64, asked, answered int64) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Errorf("the generation went on by %d more than the swaps that were asked for:%s", times, w.history.during(asked-5e9, answered))
}

func (w *watcher) sealed() bool { return strings.Contains(w.targets[0].name, ".sealed.") }

func around(spans []span, at int64) string {
	for _, s := range spans {
		if s.from <= at && at < s.to {
			return fmt.Sprintf("%s after the answer, %s before the next request", time.Duration(at-s.from), time.Duration(s.to-at))
		}
	}
	return ""
}

// report says how much was seen, which must not be nothing.
func (w *watcher) report(t *testing.T, kinds []string) {
	t.Helper()
	t.Logf("not opened: %v", w.failed)
	t.Logf("%d bytes at the far side; flows opened: %v; cut without cause: %d %v", w.bytes, w.opened, w.cut, w.cuts)
	for _, kind := range kinds {
		if w.opened[kind] == 0 {
			t.Errorf("no flow of kind %s ever opened", kind)
		}
	}
}

// TestConcurrentSwappersNeverOverwriteEachOther: with if_generation each swap is
// made from what its caller had seen, whatever the others do.
func TestConcurrentSwappersNeverOverwriteEachOther(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b := start(t, "--allow", "c.torture.test")
		first, err := b.Policy(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		each := scaled(t, 25, 500)
		var won, stale atomic.Int64
		var mu sync.Mutex
		generations := map[uint64]string{}
		var work sync.WaitGroup
		for i := range 4 {
			work.Go(func() {
				for n := 0; n < each; {
					state, err := b.Policy(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					name := fmt.Sprintf("swapper%d-%d.torture.test", i, n)
					result, err := b.Swap(t.Context(), api.SwapRequest{
						Policy: parse(t, written("allowlist", []string{name}, nil)), IfGeneration: &state.Generation,
					})
					var refused *api.Error
					switch {
					case err == nil:
						n++
						won.Add(1)
						mu.Lock()
						if generations[result.Generation] != "" || result.Generation != state.Generation+1 {
							t.Errorf("generation %d was given twice, or not as the next of %d", result.Generation, state.Generation)
						}
						generations[result.Generation] = name
						mu.Unlock()
					case errors.As(err, &refused) && refused.Status == http.StatusPreconditionFailed:
						stale.Add(1)
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		work.Wait()
		end, err := b.Policy(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := first.Generation + uint64(4*each); end.Generation != want || won.Load() != int64(4*each) {
			t.Errorf("generation %d after %d swaps, want %d", end.Generation, won.Load(), want)
		}
		if name := generations[end.Generation]; end.Policy.Allowed[0].Name != name {
			t.Errorf("in force is %v, the last that was answered is %s", end.Policy, name)
		}
		report(t, "4 swappers with if_generation", b.shape, "%d swaps, none overwrote another's, %d refused as stale", won.Load(), stale.Load())
	})
}

// linesBetween gives what a log says of swaps and breaches, of the end of flows to a
// target and of denials, in a time and a little before and after.
func linesBetween(log, about string, from, to int64) string {
	var found strings.Builder
	for line := range strings.Lines(log) {
		var e audit.Event
		if err := json.Unmarshal([]byte(line), &e); err == nil && (e.Kind == audit.KindSwap || e.Kind == audit.KindBreach || strings.Contains(line, about)) && (e.Kind != audit.KindDecision || e.Verdict == policy.Deny) && e.Time.UnixNano() > from-20e6 && e.Time.UnixNano() < to+20e6 {
			found.WriteString("\n  " + strings.TrimSpace(line))
		}
	}
	return lab.Tail(found.String(), 8000)
}
