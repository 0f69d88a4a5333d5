//go:build linux

package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// compiled builds a policy from its document.
func compiled(t testing.TB, generation uint64, document string) *policy.Compiled {
	t.Helper()
	d, _, err := policy.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return policy.Compile(d, policy.Options{Generation: generation})
}

const originOnly = `{"network_mode":"allowlist","allowed_hosts":["origin.test"]}`

func TestRejudgeDecidesOnTheRecordedEvidence(t *testing.T) {
	special := testFlow()
	special.Addr = netip.MustParseAddr("10.1.2.3")
	special.Resolved = true
	resolved := testFlow()
	resolved.Resolved = true
	unnamed := testFlow()
	unnamed.Name, unnamed.Request.Name = "", ""
	unnamed.Request.Attributed = []string{"origin.test"}
	for _, c := range []struct {
		name     string
		info     FlowInfo
		document string // empty: no policy
		reason   policy.Reason
		rule     string
		revoked  bool
	}{
		{"a name still allowed is kept", testFlow(), originOnly, policy.ReasonRule, "origin.test", false},
		{
			"a name allowed by another rule is kept under that rule", testFlow(),
			`{"network_mode":"allowlist","allowed_hosts":["*.test"]}`, policy.ReasonRule, "*.test", false,
		},
		{"a name and its address still allowed are kept", resolved, originOnly, policy.ReasonRule, "origin.test", false},
		{"a name that is not listed any more is revoked", testFlow(), `{"network_mode":"allowlist","allowed_hosts":["other.test"]}`, policy.ReasonUnlisted, "", true},
		{"a name that is carved out is revoked", testFlow(), `{"network_mode":"denylist","denied_hosts":["origin.test"]}`, policy.ReasonDenied, "origin.test", true},
		{"an address that was fine in public is revoked under a name", special, originOnly, policy.ReasonSpecialAddress, "", true},
		{"an unnamed flow is kept by the name its address was handed out for", unnamed, originOnly, policy.ReasonRule, "origin.test", false},
		{"everything is revoked without network", testFlow(), `"no-network"`, policy.ReasonMode, "", true},
		{"everything is kept in public", special, `"public"`, policy.ReasonMode, "", false},
		{"everything is revoked without a policy", testFlow(), "", policy.ReasonUnprotected, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			flows, events := newTestFlows(t)
			cuts := 0
			f := flows.Register(c.info, func() { cuts++ })
			var next *policy.Compiled
			if c.document != "" {
				next = compiled(t, 2, c.document)
			}
			revoked := flows.Rejudge(next)
			list := flows.List()
			if c.revoked {
				if revoked != 1 || cuts != 1 || len(list) != 0 {
					t.Fatalf("%d revoked, cut %d times, %d listed; want 1, 1, 0", revoked, cuts, len(list))
				}
			} else if revoked != 0 || cuts != 0 || len(list) != 1 {
				t.Fatalf("%d revoked, cut %d times, %d listed; want 0, 0, 1", revoked, cuts, len(list))
			} else if list[0].Rule != c.rule || list[0].Reason != c.reason || list[0].Generation != 2 {
				t.Errorf("kept as %+v, want rule %q, reason %q, generation 2", list[0], c.rule, c.reason)
			}
			f.End(nil)
			f.End(errors.New("a second end is not told"))
			got := events.all()
			if len(got) != 1 {
				t.Fatalf("%d events, want 1", len(got))
			}
			e := got[0]
			if c.revoked {
				if e.Verdict != policy.Deny || e.Reason != policy.ReasonRevoked || e.Rule != c.rule ||
					e.Message != "the policy in force forbids it: "+string(c.reason) {
					t.Errorf("event %+v, want it revoked by %q for %q", e, c.rule, c.reason)
				}
			} else if e.Verdict != policy.Allow || e.Reason != c.reason || e.Rule != c.rule {
				t.Errorf("event %+v, want it allowed by %q for %q", e, c.rule, c.reason)
			}
		})
	}
}

func TestAnOlderPolicyDoesNotOverruleANewerOne(t *testing.T) {
	flows, _ := newTestFlows(t)
	f := flows.Register(testFlow(), func() { t.Error("cut") })
	defer f.End(nil)
	flows.Rejudge(compiled(t, 5, originOnly))
	if n := flows.Rejudge(compiled(t, 4, `"no-network"`)); n != 0 {
		t.Errorf("%d revoked by a policy that was no longer in force", n)
	}
	if d := f.Confirm(compiled(t, 4, `"no-network"`)); d.Verdict != policy.Allow || d.Generation != 5 {
		t.Errorf("confirmed as %+v, want the verdict of generation 5", d)
	}
}

func TestCutListAndClose(t *testing.T) {
	flows, events := newTestFlows(t)
	kept, cut := startRelayed(t, flows), startRelayed(t, flows)
	list := flows.List()
	if len(list) != 2 || list[0].ID != kept.flow.ID() || list[1].ID != cut.flow.ID() {
		t.Fatalf("listed %+v, want both flows, oldest first", list)
	}
	for _, id := range []string{"", "f", "x-1", kept.flow.ID() + "0", kept.flow.ID() + "x"} {
		if flows.Cut(id) {
			t.Errorf("Cut(%q) found a flow", id)
		}
	}
	if !flows.Cut(cut.flow.ID()) {
		t.Fatal("the flow to cut was not found")
	}
	if err := cut.wait(t); !errors.Is(err, ErrCut) {
		t.Errorf("the flow ended with %v, want ErrCut", err)
	}
	for _, c := range []*net.TCPConn{cut.client, cut.server} {
		if err := finalError(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a side of the cut flow got %v, want a reset", err)
		}
	}
	if flows.Cut(cut.flow.ID()) {
		t.Error("the flow was cut twice")
	}
	if err := echoOnce(kept); err != nil {
		t.Errorf("the other flow: %v", err)
	}
	flows.Close()
	if err := kept.wait(t); !errors.Is(err, ErrCut) {
		t.Errorf("the other flow ended with %v at the close, want ErrCut", err)
	}
	late := startRelayed(t, flows)
	if err := late.wait(t); !errors.Is(err, ErrCut) {
		t.Errorf("a flow that came too late ended with %v, want ErrCut", err)
	}
	if got := events.all(); len(got) != 3 {
		t.Errorf("%d flows recorded, want 3", len(got))
	}
}

func echoOnce(r *relayed) error {
	if _, err := r.client.Write([]byte("ping")); err != nil {
		return err
	}
	got := make([]byte, 4)
	r.server.SetReadDeadline(time.Now().Add(30 * time.Second))
	defer r.server.SetReadDeadline(time.Time{})
	_, err := io.ReadFull(r.server, got)
	return err
}

func TestStartOfARevokedFlowResetsBothSides(t *testing.T) {
	flows, events := newTestFlows(t)
	client, a := tcpPair(t)
	b, server := tcpPair(t)
	defer client.Close()
	defer server.Close()
	f := flows.Register(testFlow(), nil)
	if d := f.Confirm(compiled(t, 2, `"no-network"`)); d.Verdict != policy.Deny || d.Reason != policy.ReasonMode {
		t.Fatalf("confirmed as %+v, want deny mode", d)
	}
	err := Relay(f, a, b)
	f.End(err)
	if !errors.Is(err, ErrRevoked) {
		t.Errorf("the relay ended with %v, want ErrRevoked", err)
	}
	for _, c := range []*net.TCPConn{client, server} {
		if err := finalError(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a side got %v, want a reset", err)
		}
	}
	if e := events.all(); len(e) != 1 || e[0].Reason != policy.ReasonRevoked {
		t.Errorf("events %+v, want one, revoked", e)
	}
}

// TestNotAByteAfterRejudge revokes half of many flows that move bytes both ways as
// fast as they can, at once and held up. The far ends' kernels count what arrives.
func TestNotAByteAfterRejudge(t *testing.T) {
	flows, _ := newTestFlows(t)
	ln := loopbackListener(t)
	var revoked, kept []*relayed
	var pumps sync.WaitGroup
	for i := range 40 {
		r, err := newRelayed(flows, ln)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			r.flow.info.Request.Name = "doomed.test" // before anybody judges it
			revoked = append(revoked, r)
		} else {
			kept = append(kept, r)
		}
		for _, c := range []*net.TCPConn{r.client, r.server} {
			pumps.Go(func() { writeOn(c) })
			if i%4 < 2 { // the others never read: their bytes queue up on the way
				pumps.Go(func() { io.Copy(io.Discard, struct{ io.Reader }{c}) })
			}
		}
	}
	time.Sleep(200 * time.Millisecond)
	if n := flows.Rejudge(compiled(t, 2, originOnly)); n != len(revoked) {
		t.Fatalf("%d revoked, want %d", n, len(revoked))
	}
	time.Sleep(2 * time.Millisecond) // for what the kernel had on its way
	before, keptBefore := arrived(t, revoked), arrived(t, kept)
	time.Sleep(200 * time.Millisecond)
	if after := arrived(t, revoked); after != before {
		t.Errorf("%d bytes arrived after the flows were revoked", after-before)
	}
	if arrived(t, kept) == keptBefore {
		t.Error("the flows that were kept have stopped")
	}
	for _, r := range revoked {
		if err := r.wait(t); !errors.Is(err, ErrRevoked) {
			t.Errorf("a revoked flow ended with %v", err)
		}
	}
	for _, r := range append(kept, revoked...) {
		r.client.Close()
		r.server.Close()
	}
	pumps.Wait()
}

// TestASilentFlowPassesNothingAfterRejudge has both ends of silent flows speak the
// moment that the flows are revoked.
func TestASilentFlowPassesNothingAfterRejudge(t *testing.T) {
	flows, _ := newTestFlows(t)
	ln := loopbackListener(t)
	var silent []*relayed
	for range 200 {
		r, err := newRelayed(flows, ln)
		if err != nil {
			t.Fatal(err)
		}
		defer r.client.Close()
		defer r.server.Close()
		if err := echoOnce(r); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, r)
	}
	time.Sleep(silence + 100*time.Millisecond)
	before := arrived(t, silent)
	if n := flows.Rejudge(nil); n != len(silent) {
		t.Fatalf("%d revoked, want %d", n, len(silent))
	}
	for i := len(silent) - 1; i >= 0; i-- { // those that are reset last first
		silent[i].client.Write([]byte("out")) // too late, and perhaps refused
		silent[i].server.Write([]byte("in"))
	}
	for _, r := range silent {
		if err := r.wait(t); !errors.Is(err, ErrRevoked) {
			t.Errorf("a silent flow ended with %v", err)
		}
		for _, c := range []*net.TCPConn{r.client, r.server} {
			if err := finalError(c); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a side got %v, want a reset", err)
			}
		}
	}
	if after := arrived(t, silent); after != before {
		t.Errorf("%d bytes arrived after the flows were revoked", after-before)
	}
}

func writeOn(c *net.TCPConn) {
	for {
		if _, err := c.Write(noise()[:256<<10]); err != nil {
			return
		}
	}
}

// arrived is how many bytes the kernel has received for both ends of the flows.
func arrived(t *testing.T, of []*relayed) (total uint64) {
	t.Helper()
	for _, r := range of {
		for _, c := range []*net.TCPConn{r.client, r.server} {
			raw, err := c.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			err = raw.Control(func(fd uintptr) {
				info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
				if err != nil {
					t.Error(err)
					return
				}
				total += info.Bytes_received
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return total
}

// TestFlowsComeGoAndAreCutAtOnce has everything happen to flows at the same time:
// each must be recorded once, and none may outlive the policy that forbids it.
func TestFlowsComeGoAndAreCutAtOnce(t *testing.T) {
	flows, events := newTestFlows(t)
	var inForce atomic.Pointer[policy.Compiled]
	inForce.Store(compiled(t, 1, originOnly))
	stop := make(chan struct{})
	var opened atomic.Int64
	var all sync.WaitGroup
	for range 6 {
		ln := loopbackListener(t)
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := briefFlow(flows, ln, &inForce); err != nil {
					t.Error(err)
					return
				}
				opened.Add(1)
			}
		})
	}
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for i, f := range flows.List() {
				if i%3 == 0 {
					flows.Cut(f.ID)
				}
			}
		}
	})
	documents := []string{originOnly, `"no-network"`, `"public"`}
	for generation := uint64(2); generation < 150; generation++ {
		next := compiled(t, generation, documents[generation%3])
		inForce.Store(next)
		flows.Rejudge(next)
		for before := opened.Load(); opened.Load() < before+3 && !t.Failed(); {
			time.Sleep(100 * time.Microsecond)
		}
	}
	close(stop)
	all.Wait()
	flows.Close()
	if n := len(events.all()); n != int(opened.Load()) || n < 100 {
		t.Errorf("%d flows were opened, %d recorded", opened.Load(), n)
	}
	if n := flows.Len(); n != 0 {
		t.Errorf("%d flows are still registered", n)
	}
}

// briefFlow opens a flow, sends a little through it, and closes it; being revoked
// or cut on the way is no error, outliving its policy is.
func briefFlow(flows *Flows, ln *net.TCPListener, inForce *atomic.Pointer[policy.Compiled]) error {
	client, a, err := newTCPPair(ln)
	if err != nil {
		return err
	}
	defer client.Close()
	b, server, err := newTCPPair(ln)
	if err != nil {
		return err
	}
	defer server.Close()
	f := flows.Register(testFlow(), func() { errors.Join(Abort(a), Abort(b)) })
	verdict := f.Confirm(inForce.Load()).Verdict
	ended := make(chan error, 1)
	Start(f, a, b, func(err error) {
		f.End(err)
		ended <- err
	})
	client.Write([]byte("hello"))
	client.CloseWrite()
	io.Copy(io.Discard, server)
	server.Close()
	io.Copy(io.Discard, client)
	switch err := <-ended; {
	case err == nil && verdict == policy.Deny:
		return errors.New("a flow lived on that was denied when it was confirmed")
	case err == nil, errors.Is(err, ErrRevoked), errors.Is(err, ErrCut):
		return nil
	default:
		return fmt.Errorf("a brief flow ended with: %w", err)
	}
}

// TestWhatASilentFlowsClientIsStillOwed: bytes that are queued for a client which reads
// nothing die before the swap returns; one that nothing is queued for can wait for its
// reset. The worker, which would reset either, is not nudged until both have been seen.
func TestWhatASilentFlowsClientIsStillOwed(t *testing.T) {
	for name, owed := range map[string]bool{"nothing": false, "a queue": true} {
		t.Run(name, func(t *testing.T) {
			flows, _ := newTestFlows(t)
			r := startRelayed(t, flows)
			if err := echoOnce(r); err != nil {
				t.Fatal(err)
			}
			tunnel := r.flow.tunnel
			if owed {
				fillQueue(t, r, tunnel)
			}
			isDead := func(end int) bool {
				tunnel.mu.Lock()
				defer tunnel.mu.Unlock()
				return tunnel.ends[end].dead
			}
			tunnel.mu.Lock()
			tunnel.moved -= time.Hour // as if it had been silent for long
			tunnel.mu.Unlock()

			if !r.flow.abort(ErrRevoked) {
				t.Fatal("it was over")
			}
			if isDead(upstreamEnd) {
				t.Error("it was not taken for silent")
			}
			r.flow.settle()
			got := received(t, r.client)
			for i, want := range map[int]bool{upstreamEnd: true, clientEnd: owed} {
				if dead := isDead(i); dead != want {
					t.Errorf("end %d is reset: %v, want %v", i, dead, want)
				}
			}
			if err := finalError(r.server); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server got %v, want a reset", err)
			}
			if owed {
				if err := finalError(r.client); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the client that is owed bytes got %v, want a reset", err)
				}
			}
			flows.nudge()
			if err := r.wait(t); !errors.Is(err, ErrRevoked) {
				t.Errorf("the flow ended with %v", err)
			}
			if err := finalError(r.client); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client got %v, want a reset", err)
			}
			if after := received(t, r.client); after != got {
				t.Errorf("%d bytes came to the client after the flow was revoked", after-got)
			}
		})
	}
}

// fillQueue has the server send until bytes are queued at our end of the client's
// connection for want of a window, and none wait in the relay.
func fillQueue(t *testing.T, r *relayed, tunnel *tunnel) {
	t.Helper()
	fd := tunnel.ends[clientEnd].fd
	deadline := time.Now().Add(20 * time.Second)
	for sent := uint64(0); ; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is queued")
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case r.flow.in.Load() < sent || info.Unacked > 0: // on its way
		case info.Notsent_bytes > 0:
			return
		default:
			n, err := r.server.Write(noise()[:16<<10])
			if err != nil {
				t.Fatal(err)
			}
			sent += uint64(n)
		}
	}
}

// received is how many bytes the connection's kernel has received.
func received(t *testing.T, c *net.TCPConn) uint64 {
	t.Helper()
	return arrived(t, []*relayed{{client: c, server: c}}) / 2
}
