//go:build linux

package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

// TestKilledWorkersCostNoMomentUnguardedOrRefused kills the worker of a joined
// sidecar at random moments under load. Nothing forbidden arrives, no connection is
// refused (the keeper's listeners hold them), and the policy is the same again.
func TestKilledWorkersCostNoMomentUnguardedOrRefused(t *testing.T) {
	lab.NeedWorld(t)
	require.Root(t)
	kills := scaled(t, 10, 100)
	targets := targetsOf("joined", 8, 3)
	open, shut := targets[:4], targets[4:8]
	// A denied name is in force, so that an address that is allowed is the proxy's too.
	direct := targets[8]
	b := startJoined(t, "--allow", open[0].rule, "--allow", open[1].rule, "--allow", open[2].rule, "--allow", open[3].rule,
		"--allow", direct.rule, "--deny", "nobody.torture.test")
	tapped := openTap(t, b.link, addrsOf(shut))
	flows := b.job(t, flowArgs(b, targets[:8], 48)...)
	probing := b.job(t, "connects", "-target", direct.addr.String()+":7")
	denied := b.job(t, "connects", "-target", shut[0].addr.String()+":22")
	var recovered []time.Duration
	var so progress
	for i := range kills {
		so.say(t, "%d kills", i)
		time.Sleep(rand.N(300 * time.Millisecond))
		pid := b.joined.Worker(t)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for {
			if status, err := b.Status(t.Context()); err == nil && status.PID != pid {
				break
			}
			if time.Since(began) > 30*time.Second {
				t.Fatal("no worker comes back")
			}
			time.Sleep(time.Millisecond)
		}
		recovered = append(recovered, time.Since(began))
	}
	slices.Sort(recovered)
	report(t, fmt.Sprintf("the worker killed %d times under load", kills), "joined", "a worker answered again after %s (median), %s (longest)",
		recovered[len(recovered)/2].Round(time.Millisecond), recovered[len(recovered)-1].Round(time.Millisecond))
	b.joined.AwaitReady(t)
	state, err := b.Policy(t.Context())
	if err != nil || len(state.Policy.Allowed) != 5 {
		t.Errorf("in force is %+v, %v", state.Policy, err)
	}
	opened := map[string]int{}
	for _, line := range flows.stop(t) {
		if words := strings.Fields(line); words[0] == "open" {
			opened[words[3]]++
		}
	}
	for _, target := range shut {
		if n := opened[target.name]; n > 0 {
			t.Errorf("%d flows to %s", n, target.name)
		}
	}
	for _, target := range open {
		if opened[target.name] == 0 {
			t.Errorf("no flow to %s: there was no load", target.name)
		}
	}
	for _, s := range tapped.seen(t) {
		t.Errorf("%d bytes (out: %v) of %s", s.bytes, s.out, s.peer)
		break
	}
	for _, line := range probing.stop(t) {
		if strings.HasPrefix(line, "tried ") {
			report(t, "dials of an allowed address meanwhile", "joined", "%s (longest: ms between two that were answered)", line)
		}
		if strings.HasSuffix(line, "longest 0") {
			t.Errorf("nothing passed: %s", line)
		}
		if strings.HasPrefix(line, "refused") {
			t.Errorf("a connection was refused while a worker was away: %s", line)
		}
	}
	for _, line := range denied.stop(t) {
		if rest, ok := strings.CutPrefix(line, "tried "); ok && !strings.Contains(rest, "longest 0") {
			t.Errorf("dials of a forbidden address passed: %s", line)
		}
	}
}

// TestAKilledKeeperLeavesTheSandboxShut, and what comes after it takes over.
func TestAKilledKeeperLeavesTheSandboxShut(t *testing.T) {
	lab.NeedWorld(t)
	require.Root(t)
	targets := targetsOf("joined", 8, 3)
	address := targets[8].addr.String()
	b := startJoined(t, "--allow", targets[0].rule, "--allow", address)
	tapped := openTap(t, b.link, addrsOf(targets))
	flows := b.job(t, flowArgs(b, []target{targets[0], targets[8]}, 20)...)
	flows.says(t, "open")
	kills := scaled(t, 3, 100)
	var so progress
	for i := range kills {
		so.say(t, "%d kills", i)
		time.Sleep(200*time.Millisecond + rand.N(300*time.Millisecond))
		b.joined.Kill(t)
		// What went straight out goes on (the rules stand as they were); what needs us
		// does not, and nothing else begins to.
		gone := time.Now().UnixNano()
		time.Sleep(300 * time.Millisecond)
		b.joined.refused(t, "tcp", targets[1].addr.String()+":22")
		b.joined.refused(t, "udp", targets[1].addr.String()+":7")
		b.joined.refused(t, "tcp", targets[0].addr.String()+":80")
		for _, s := range tapped.taken() {
			switch {
			case s.peer == targets[8].addr:
			// What the far side was asked before, it answers when it comes to it; and the
			// kernel sends what a socket had taken, once more where it was lost.
			case s.peer == targets[0].addr && (!s.out || s.at < gone+int64(200*time.Millisecond)):
			default:
				t.Fatalf("kill %d: %d bytes (out: %v) of %s, %s after the keeper's end", i, s.bytes, s.out, s.peer, time.Duration(s.at-gone))
			}
		}
		b.joined.Begin(t)
		b.joined.AwaitReady(t)
	}
	flows.stop(t)
	report(t, fmt.Sprintf("the keeper killed %d times under load", kills), "joined", "no byte to what it must pass, every time")
}

// TestAKilledRunLeavesNothing kills `exeat run` at random moments under load: the
// sandbox goes with it, and no byte more leaves.
func TestAKilledRunLeavesNothing(t *testing.T) {
	lab.NeedWorld(t)
	kills := scaled(t, 10, 100)
	var so progress
	for i := range kills {
		so.say(t, "%d kills", i)
		targets := targetsOf("sealed", 8, 3)
		b := startSealed(t, "--allow", targets[0].rule, "--allow", targets[8].rule)
		tapped := openTap(t, b.link, addrsOf(targets))
		// Of every kind to every target, lest all of them be denied.
		flows := b.job(t, flowArgs(b, targets, 8*everyKind)...)
		flows.says(t, "open")
		time.Sleep(rand.N(200 * time.Millisecond))
		if err := b.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		flows.rest(t)
		gone := time.Now().UnixNano()
		time.Sleep(50 * time.Millisecond)
		before := 0
		for _, s := range tapped.seen(t) {
			switch {
			case s.at > gone && s.out: // the far side answers what it was asked before
				t.Fatalf("kill %d: %d bytes (out: %v) of %s after the end", i, s.bytes, s.out, s.peer)
			case s.peer != targets[0].addr && s.peer != targets[8].addr:
				t.Fatalf("kill %d: %d bytes (out: %v) of %s, which nothing allowed", i, s.bytes, s.out, s.peer)
			}
			before++
		}
		if before == 0 {
			t.Fatal("there was no load")
		}
		if _, err := b.Status(t.Context()); err == nil {
			t.Fatal("somebody answers at the control socket")
		}
	}
	report(t, fmt.Sprintf("exeat run killed %d times under load", kills), "sealed", "no byte more, every time")
}
