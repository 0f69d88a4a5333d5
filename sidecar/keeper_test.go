//go:build linux

package sidecar

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// linked gives a worker's end of a keeper with this memory.
func linked(t *testing.T, m *memory) *keeperLink {
	t.Helper()
	ours, file, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.serve(ours) }()
	t.Cleanup(func() {
		conn.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		ours.Close()
	})
	return newKeeperLink(conn.(*net.UnixConn))
}

func TestTheKeeperRemembersWhatAWorkerCommitted(t *testing.T) {
	disk, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	for name, store := range map[string]*FileStore{"on disk": disk, "as long as it lives": nil} {
		t.Run(name, func(t *testing.T) {
			m := remember(store)
			worker := linked(t, m)
			commit, err := worker.Prepare(State{Document: policy.Document{Mode: policy.ModePublic}, Generation: 3})
			if err != nil {
				t.Fatal(err)
			}
			if state, _, _, _ := m.recall(); state != nil || m.cameUp() {
				t.Errorf("before the commit it remembers %+v", state)
			}
			if err := commit(); err != nil {
				t.Fatal(err)
			}
			if state, _, _, _ := m.recall(); state == nil || state.Generation != 3 || !m.cameUp() {
				t.Errorf("it remembers %+v, want generation 3", state)
			}
			if err := commit(); err == nil {
				t.Error("what was committed was committed again")
			}
			if err := worker.Forget(); err != nil {
				t.Fatal(err)
			}
			if state, distrust, _, _ := m.recall(); state != nil || distrust == "" {
				t.Errorf("it remembers %+v and trusts it (%q) though a worker said to forget", state, distrust)
			}
		})
	}
}

func TestTheKeeperRemembersAttributions(t *testing.T) {
	m := remember(nil)
	worker := linked(t, m)
	addr := netip.MustParseAddr("192.0.2.1")
	if err := worker.attributed("a.test", []netip.Addr{addr}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.Prepare(State{Generation: 1}); err != nil { // answered after it
		t.Fatal(err)
	}
	if _, _, names, _ := m.recall(); len(names) != 1 || names[0].Name != "a.test" || names[0].Addr != addr {
		t.Errorf("it remembers %v", names)
	}
}

func TestTheKeeperIsToldOfNewsAlone(t *testing.T) {
	k := &joinedKernel{}
	now := time.Now()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, step := range []struct {
		why   string
		name  string
		addrs []netip.Addr
		after time.Duration
		want  bool
	}{
		{"the first time", "a.test", []netip.Addr{a}, 0, true},
		{"the same again", "a.test", []netip.Addr{a}, time.Minute, false},
		{"another address", "a.test", []netip.Addr{b}, time.Minute, true},
		{"another name", "b.test", []netip.Addr{a}, time.Minute, true},
		{"the same before the keeper forgets", "a.test", []netip.Addr{a}, tellAgain, true},
	} {
		if got := k.news(step.name, step.addrs, now.Add(step.after)); got != step.want {
			t.Errorf("%s: news %v, want %v", step.why, got, step.want)
		}
	}
}

func TestOnlyWholeLinesAreCopied(t *testing.T) {
	var out bytes.Buffer
	if err := copyLines(&out, strings.NewReader("{\"a\":1}\n{\"b\":2}\n{\"c\"")); err != nil || out.String() != "{\"a\":1}\n{\"b\":2}\n" {
		t.Errorf("copied %q, %v", out.String(), err)
	}
	full := errors.New("full")
	if err := copyLines(failing{full}, strings.NewReader("a\nb\n")); !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestDatagramsOverAStream(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	framed := &framedConn{Conn: client}
	go func() {
		got := make([]byte, 5)
		if _, err := io.ReadFull(server, got); err != nil || string(got) != "\x00\x03abc" {
			t.Errorf("frame %q, %v", got, err)
		}
		if _, err := server.Write([]byte("\x00\x02xy")); err != nil {
			t.Error(err)
		}
	}()
	if n, err := framed.Write([]byte("abc")); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	buf := make([]byte, 16)
	if n, err := framed.Read(buf); err != nil || string(buf[:n]) != "xy" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if _, err := framed.Write(make([]byte, 1<<16)); err == nil {
		t.Error("a message of 64 KiB was framed")
	}
}

func TestWhichLinksAreSafe(t *testing.T) {
	for name, c := range map[string]struct {
		netRaw, anyLink bool
		links           []firewall.Link
		want            linkChange
	}{
		"one that was there":                            {true, false, []firewall.Link{{Index: 2, Name: "eth0"}}, linkChange{}},
		"a new one, with NET_RAW":                       {true, true, []firewall.Link{{Index: 3, Name: "eth1"}}, linkChange{unsafe: true}},
		"a new one, with NET_RAW, hooked by name":       {true, false, []firewall.Link{{Index: 3, Name: "eth1"}}, linkChange{unsafe: true, hook: true}},
		"a new one, without NET_RAW":                    {false, true, []firewall.Link{{Index: 3, Name: "eth1"}}, linkChange{}},
		"a new one, without NET_RAW, hooked by name":    {false, false, []firewall.Link{{Index: 3, Name: "eth1"}}, linkChange{hook: true}},
		"one that was renamed, hooked by name":          {true, false, []firewall.Link{{Index: 2, Name: "net0"}}, linkChange{hook: true, was: "eth0"}},
		"one that was renamed, hooked whatever it is":   {true, true, []firewall.Link{{Index: 2, Name: "net0"}}, linkChange{}},
		"one that took the number of one that has gone": {true, true, []firewall.Link{{Index: 2, Gone: true}, {Index: 2, Name: "eth0"}}, linkChange{unsafe: true}},
	} {
		t.Run(name, func(t *testing.T) {
			yes := true
			h := handover{Features: firewall.Features{Egress: &yes}, Config: JoinedConfig{NetRaw: c.netRaw}, Links: map[int]string{1: "lo", 2: "eth0"}}
			if c.anyLink {
				h.Features.AnyLink = &yes
			}
			g := newLinkGuard(h)
			var got linkChange
			for _, l := range c.links {
				got = g.saw(l)
			}
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if g.health().OK == c.want.unsafe {
				t.Errorf("health %+v", g.health())
			}
		})
	}
}

func TestAWorkerResumesWhatTheKernelHoldsForCertain(t *testing.T) {
	now := time.Now()
	grouped := firewall.Own{Cgroup: 5, Level: 1}
	inForce := &State{Generation: 3, Document: policy.Document{Mode: policy.ModePublic}}
	leased := func(until time.Time) *State {
		s := *inForce
		s.Lease = &api.Lease{Expires: until}
		return &s
	}
	for name, c := range map[string]struct {
		handover handover
		want     bool
	}{
		"after another":                 {handover{Restart: "died", Own: grouped, State: inForce}, true},
		"with a lease":                  {handover{Restart: "died", Own: grouped, State: leased(now.Add(time.Hour))}, true},
		"the first":                     {handover{Own: grouped, State: inForce}, false},
		"with nothing kept":             {handover{Restart: "died", Own: grouped}, false},
		"what cannot be trusted":        {handover{Restart: "died", Own: grouped, State: inForce, Distrust: "torn"}, false},
		"after one that died in a swap": {handover{Restart: "died", Own: grouped, State: inForce, Between: true}, false},
		"when the lease has ended":      {handover{Restart: "died", Own: grouped, State: leased(now.Add(-time.Second))}, false},
		"where secrets tell us apart":   {handover{Restart: "died", Own: firewall.Own{UID: 7}, State: inForce}, false},
	} {
		if got := c.handover.resumes(now); got != c.want {
			t.Errorf("%s: resumes %v, want %v", name, got, c.want)
		}
	}
}

func TestTheKeeperKnowsOfASwapThatDidNotEnd(t *testing.T) {
	m := remember(nil)
	worker := linked(t, m)
	commit, err := worker.Prepare(State{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, between := m.recall(); !between {
		t.Error("prepared and not committed: want it known")
	}
	if err := commit(); err != nil {
		t.Fatal(err)
	}
	if _, _, _, between := m.recall(); between {
		t.Error("committed, and still taken for unfinished")
	}
}
