//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/policy"
)

// serverPorts tell the two directions apart where both ends have one address: the
// engine's own end is at whatever address it dials, all of them being local.
var serverPorts = map[uint16]bool{22: true, 80: true, 443: true, 8080: true, 8443: true}

// toward says whether s went to the server at addr, or came from it.
func (s segment) toward(addr netip.Addr) (out, in bool) {
	return s.to.Addr() == addr && serverPorts[s.to.Port()], s.from.Addr() == addr && serverPorts[s.from.Port()]
}

// after sums the data of segments to and from addr that were sent after a moment,
// and before.
func after(segments []segment, addr string, moment time.Time) (out, in, outBefore, inBefore int) {
	a := netip.MustParseAddr(addr)
	for _, s := range segments {
		went, came := s.toward(a)
		late := s.at.After(moment)
		switch {
		case went && late:
			out += s.bytes
		case came && late:
			in += s.bytes
		case went:
			outBefore += s.bytes
		case came:
			inBefore += s.bytes
		}
	}
	return out, in, outBefore, inBefore
}

// resetGrace is how long an origin may go on sending to a socket that is gone: a
// sender that is in the middle of a send hears of the reset when it is done with it
// (the socket's backlog), and on a busy machine that is long. Nothing of it may reach
// the agent.
const resetGrace = 250 * time.Millisecond

// TestPromise2NotOneByteAfterTheSwapHasReturned is 200 live transfers, half of
// them uploads, from public to no-network, seen by packet taps on the link of the
// origin and on the sandbox's own.
func TestPromise2NotOneByteAfterTheSwapHasReturned(t *testing.T) {
	for _, scheme := range []string{"https", "http"} {
		t.Run(scheme, func(t *testing.T) {
			name, addr := fresh(t)
			l := guarded("--mode", "public").start(t)
			url := scheme + "://" + name + "/endless?every=20ms"
			l.tell(agent + " hold -up 200 " + url)
			l.hears("live")
			outside, inside := openTap(t, 0), openTap(t, l.insiders(t)[0].pid)
			time.Sleep(300 * time.Millisecond)
			result := swap(t, l.client(), `"no-network"`)
			returned := time.Now()
			l.hears(url + " 200× cut")
			time.Sleep(300 * time.Millisecond)
			if result.Revoked != 200 {
				t.Errorf("revoked %d flows, want 200", result.Revoked)
			}
			atOrigin := outside.seen(t)
			out, in, outBefore, inBefore := after(atOrigin, addr, returned)
			if outBefore == 0 || inBefore == 0 {
				t.Errorf("before the swap %d bytes out and %d in: the tap shows nothing", outBefore, inBefore)
			}
			if in != 0 {
				t.Logf("after the swap had returned the origin still sent %d bytes, before it was reset", in)
			}
			if _, in, _, _ := after(atOrigin, addr, returned.Add(resetGrace)); out != 0 || in != 0 {
				t.Errorf("after the swap had returned %d bytes went out and, later than %s, %d came in, at the origin", out, resetGrace, in)
			}
			// Of the sandbox's own side what counts is what is given to the agent: its own
			// bytes to a socket that is gone leave nothing.
			_, in, _, inBefore = after(inside.seen(t), addr, returned)
			if in != 0 || inBefore == 0 {
				t.Errorf("after the swap had returned %d bytes came to the agent (before: %d)", in, inBefore)
			}
			l.end().want(t, 0)
			revoked := sum(l.events(t), func(e audit.Event) bool {
				return e.Kind == audit.KindFlow && e.Verdict == policy.Deny && e.Reason == policy.ReasonRevoked
			})
			if revoked != 200 {
				t.Errorf("the log has %d revoked flows, want 200", revoked)
			}
		})
	}
}

// TestPromise2ANarrowerAllowlistCutsOnlyWhatItShould: the others go on, whole.
func TestPromise2ANarrowerAllowlistCutsOnlyWhatItShould(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		stays, _ := fresh(t)
		goes, addr := fresh(t)
		l := guarded("--allow", stays, "--allow", goes).as(u).start(t)
		keep := fmt.Sprintf("https://%s/paced?n=%d&every=1ms https://%[1]s:8443/paced?n=%[2]d&every=1ms http://%[1]s/paced?n=%[2]d&every=1ms", stays, 2<<20)
		cut := fmt.Sprintf("https://%s/endless?every=1ms http://%[1]s/endless?every=1ms", goes)
		l.tell(agent + " hold 5 " + strings.ReplaceAll(keep, "&", `\&`) + " " + cut)
		l.hears("live")
		tapped := openTap(t, 0)
		l.set(`{"network_mode":"allowlist","allowed_hosts":["` + stays + `"]}`)
		returned := time.Now()
		var lines []string
		for range 5 {
			line, err := l.stdout.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, strings.TrimSpace(line))
		}
		all := strings.Join(lines, "\n")
		for url := range strings.FieldsSeq(keep) {
			if want := url + " 5× " + internet.PatternSum(2<<20); !strings.Contains(all, want) {
				t.Errorf("want %s:\n%s", want, all)
			}
		}
		for url := range strings.FieldsSeq(cut) {
			if want := url + " 5× cut"; !strings.Contains(all, want) {
				t.Errorf("want %s:\n%s", want, all)
			}
		}
		if out, in, _, _ := after(tapped.seen(t), addr, returned); out != 0 || in != 0 {
			t.Errorf("after the swap had returned %d bytes went out and %d came in", out, in)
		}
		l.end().want(t, 0)
		for _, e := range l.events(t) {
			if e.Kind == audit.KindFlow && (e.Name == goes) != (e.Reason == policy.ReasonRevoked) {
				t.Errorf("flow %s ended %s %s", e.Target(), e.Verdict, e.Reason)
			}
		}
	})
}

// TestPromise2AThousandSwapsUnderLoad: allowed flows are never cut, forbidden ones
// never send after the answer, and the log accounts for every connection.
func TestPromise2AThousandSwapsUnderLoad(t *testing.T) {
	t.Parallel()
	stays, staysAt := fresh(t)
	comes, comesAt := fresh(t)
	l := guarded("--allow", stays, "--quiet").start(t)
	c := l.client()
	narrow := `{"network_mode":"allowlist","allowed_hosts":["` + stays + `"]}`
	wide := `{"network_mode":"allowlist","allowed_hosts":["` + stays + `","` + comes + `"]}`
	kept := "https://" + stays + "/endless?every=10ms"
	l.tell(agent + " hold 3 '" + kept + "' & while :; do " + agent + " repeat 20 https://" + stays + "/; done > '" + scratch + "/stays' 2>&1 & " +
		"while :; do " + agent + " repeat 20 http://" + comes + "/endless?every=1ms; done > '" + scratch + "/comes' 2>&1 &")
	l.hears("live")
	tapped := openTap(t, 0)
	var forbidden atomic.Int64
	var closed []window
	for range 500 {
		swap(t, c, wide)
		result := swap(t, c, narrow)
		forbidden.Add(int64(result.Revoked))
		shut := window{begin: time.Now()}
		time.Sleep(windowLength)
		shut.end = time.Now()
		closed = append(closed, shut)
	}
	segments := tapped.seen(t)
	result := swap(t, c, `"no-network"`)
	if result.Generation != 1002 {
		t.Errorf("generation %d after 1,001 swaps, want 1002", result.Generation)
	}
	if result.Revoked < 3 {
		t.Errorf("the last swap cut %d flows: the three that were allowed throughout are gone", result.Revoked)
	}
	if late := duringWindows(segments, comesAt, closed); late != 0 {
		t.Errorf("%d bytes of forbidden flows while they were forbidden", late)
	}
	if forbidden.Load() == 0 || len(segments) == 0 {
		t.Errorf("%d flows were cut, %d segments seen: there was no load", forbidden.Load(), len(segments))
	}
	l.end()
	events := l.events(t)
	swaps := sum(events, func(e audit.Event) bool { return e.Kind == audit.KindSwap })
	if swaps < 1002 {
		t.Errorf("the log has %d swaps", swaps)
	}
	for name, addr := range map[string]string{stays: staysAt, comes: comesAt} {
		flows := sum(events, func(e audit.Event) bool { return e.Kind == audit.KindFlow && e.Name == name })
		if n := uint64(arrivals(addr)); flows > n || n-flows > 60 {
			t.Errorf("%d connections to %s arrived, the log accounts for %d flows", n, name, flows)
		}
	}
	cut := sum(events, func(e audit.Event) bool {
		return e.Kind == audit.KindFlow && e.Name == stays && e.Reason == policy.ReasonRevoked && e.Generation < 1002
	})
	if cut != 0 {
		t.Errorf("%d flows of the name that was allowed throughout were cut", cut)
	}
}

// window is a time in which something was forbidden: from the answer of the swap
// that forbade it until before the next is asked for.
type window struct{ begin, end time.Time }

// windowLength is how long each is, that something may be seen in it.
const windowLength = 10 * time.Millisecond

// duringWindows sums what was sent to addr in the windows. (What an origin sends
// until it hears of the reset does not reach the sandbox: see resetGrace.)
func duringWindows(segments []segment, addr string, windows []window) (bytes int) {
	a := netip.MustParseAddr(addr)
	i := 0
	for _, s := range segments {
		if went, _ := s.toward(a); !went {
			continue
		}
		for i < len(windows) && s.at.After(windows[i].end) {
			i++
		}
		if i < len(windows) && s.at.After(windows[i].begin) {
			bytes += s.bytes
		}
	}
	return bytes
}

// TestPromise2SwapsRaceWithConnections is many clients that connect while the
// policy is swapped: whoever was admitted under the old one is cut by the new.
func TestPromise2SwapsRaceWithConnections(t *testing.T) {
	name, addr := fresh(t)
	l := guarded("--mode", "public", "--quiet").start(t)
	c := l.client()
	l.tell("for i in 1 2; do (while :; do " + agent + " repeat 20 http://" + name + "/endless?every=1ms; done > /dev/null 2>&1) & done")
	eventually(t, func() string {
		if arrivals(addr) < 20 {
			return "no load"
		}
		return ""
	})
	for range 15 {
		swap(t, c, `"no-network"`)
		tapped := openTap(t, 0)
		begin := time.Now()
		time.Sleep(20 * time.Millisecond)
		if out, in, _, _ := after(tapped.seen(t), addr, begin); out+in != 0 {
			t.Errorf("%d bytes out and %d in under no-network", out, in)
		}
		if flows, err := c.Flows(t.Context()); err != nil || len(flows) != 0 {
			t.Errorf("%d flows under no-network, %v", len(flows), err)
		}
		swap(t, c, `"public"`)
		time.Sleep(20 * time.Millisecond)
	}
}

// TestPromise2AnUnreadableOrRefusedPolicyChangesNothing, in any of its parts.
func TestPromise2AnUnreadableOrRefusedPolicyChangesNothing(t *testing.T) {
	l := guarded("--allow", "pypi.test").start(t)
	c := l.client()
	for _, document := range []string{"", "{", `"public" "public"`, `{"network_mode":"allowlist","allowed_hosts":["*"]}`, `{"network_mode":"allowlist","allowed_hosts":[{"host":"203.0.113.1","port":53,"protocol":"udp"}]}`} {
		_, err := c.SwapDocument(t.Context(), []byte(document), api.SwapRequest{})
		var refused *api.Error
		if !errors.As(err, &refused) || refused.Code != api.CodeInvalid && refused.Code != api.CodeCapability {
			t.Errorf("%q: %v, want it refused", document, err)
		}
		t.Log(err)
	}
	state, err := c.Policy(t.Context())
	if err != nil || state.Generation != 1 {
		t.Errorf("generation %d, %v", state.Generation, err)
	}
	l.sh("curl -sS https://pypi.test/").want(t, 0, "hello from pypi.test")
	l.sh("curl -sS https://evil.test/").want(t, 6)
	wantDecisions(t, l.decided(), "allow rule tls pypi.test:443 (pypi.test)", "deny unlisted dns evil.test")
}
