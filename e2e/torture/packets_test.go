//go:build linux

package torture

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// flooder is where the denied packets of the floods go: no policy here names it.
const (
	flooder4 = "203.0.113.66"
	flooder6 = "2001:db8::66"
)

// TestDeniedPacketsAtARate: they are refused in the kernel, and what the log cannot
// hold it says the number of. One after the other: the rate is the machine's.
func TestDeniedPacketsAtARate(t *testing.T) {
	for _, test := range []struct {
		shape, way, what, args string
		// datagrams is how many of them are one packet to the rules.
		datagrams uint64
		// impossible is what the agent must be answered where the shape takes the way away.
		impossible string
		// often are those that the short variant has, too.
		often bool
	}{
		{shape: "sealed", way: "sendto4", what: "sendto, IPv4", args: "-target " + flooder4, datagrams: 1, often: true},
		{shape: "sealed", way: "sendto6", what: "sendto, IPv6", args: "-target " + flooder6, datagrams: 1},
		{shape: "sealed", way: "gso", what: "UDP GSO, 64 datagrams a packet", args: "-way gso -target " + flooder4, datagrams: 64},
		{shape: "sealed", way: "uring", what: "io_uring", args: "-way uring -target " + flooder4, impossible: "io_uring_setup: operation not permitted"},
		{shape: "joined", way: "sendto4", what: "sendto, IPv4", args: "-target " + flooder4, datagrams: 1, often: true},
		{shape: "joined", way: "sendto6", what: "sendto, IPv6", args: "-target " + flooder6, datagrams: 1},
		{shape: "joined", way: "uring", what: "io_uring, 128 sends a call", args: "-way uring -target " + flooder4, datagrams: 1},
		{shape: "joined", way: "gso", what: "UDP GSO, 64 datagrams a packet", args: "-way gso -target " + flooder4, datagrams: 64},
		{shape: "joined", way: "packet", what: "a packet socket (NET_RAW)", args: "-way packet -target " + flooder4, datagrams: 1, often: true},
	} {
		if !test.often && os.Getenv(tortureEnv) == "" {
			continue
		}
		// The name is in the path of the control socket, which may not be long.
		t.Run(test.shape+"/"+test.way, func(t *testing.T) {
			start := startSealed
			if test.shape == "joined" {
				require.Root(t)
				start = startJoined
			}
			if off, err := os.ReadFile("/proc/sys/kernel/io_uring_disabled"); strings.Contains(test.args, "uring") && (err != nil || string(off) != "0\n") {
				require.Skip(t, "io_uring is switched off: "+string(off))
			}
			b, name, _ := flooded(t, start)
			args := []string{"packets", "-threads", "1", "-rate", "60000", "-time", (time.Duration(scaled(t, 1, 10)) * time.Second).String(), test.args}
			if test.impossible != "" {
				said := strings.Join(b.job(t, args...).rest(t), ", ")
				report(t, "denied packets by "+test.what, b.shape, "%s", said)
				if !strings.Contains(said, test.impossible) {
					t.Errorf("%s, want %s", said, test.impossible)
				}
				return
			}
			tapped := openTap(t, b.link, []netip.Addr{netip.MustParseAddr(flooder4)})
			var sent, accepted uint64
			var took, used uint64
			b.strain(t, "denied packets by "+test.what, name, func() {
				fmt.Sscanf(b.job(t, args...).says(t, "sent"), "%d accepted %d took %d used %d", &sent, &accepted, &took, &used)
			})
			if accepted > 0 {
				t.Errorf("%d were not refused to the sender", accepted)
			}
			for _, s := range tapped.seen(t) {
				t.Errorf("%d bytes (out: %v) of %s, which is denied", s.bytes, s.out, s.peer)
				break
			}
			b.accounts(t, "denied packets by "+test.what, sent/test.datagrams, fmt.Sprintf("%d datagrams, %d a second, each %d ns of the sender's time in the kernel", sent, sent*1000/max(1, took), used/max(1, sent)))
		})
	}
}

// accounts waits until the log accounts for so many denied packets.
func (b *box) accounts(t *testing.T, what string, packets uint64, were string) {
	t.Helper()
	match := func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "" }
	logged, lost := uint64(0), uint64(0)
	for range 150 {
		if logged, lost = sumLogged(t, b, match), lostPackets(b.log()); logged+lost >= packets {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	report(t, what, b.shape, "%s; the log accounts for %d packets, and says that %d were judged and not told of", were, logged, lost)
	if logged+lost < packets {
		t.Errorf("%d packets sent, the log accounts for %d and %d", packets, logged, lost)
	}
}

// lostPackets adds up what the log says that the kernel judged and could not tell of.
func lostPackets(log string) (n uint64) {
	for line := range strings.Lines(log) {
		var e audit.Event
		if json.Unmarshal([]byte(line), &e) != nil || e.Kind != audit.KindLifecycle {
			continue
		}
		var lost uint64
		if _, err := fmt.Sscanf(e.Message, "the kernel's log overflowed: %d", &lost); err == nil {
			n += lost
		} else if _, err := fmt.Sscanf(e.Message, "%d refused packets", &lost); err == nil {
			n += lost
		}
	}
	return n
}

// TestHalfOpenConnections: handshakes that nobody completes harm nobody. An agent needs
// no capability for them: it drops the listener's answers by a filter on its own socket.
func TestHalfOpenConnections(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, address := flooded(t, start)
		// Fewer than the flows that may be open to us, or that limit would be met first.
		n := scaled(t, 5000, firewall.DefaultMaxRedirected-500)
		var flood *job
		var began, half int
		b.strain(t, fmt.Sprintf("%d handshakes left half-open", n), name, func() {
			flood = b.job(t, "halfopen", "-n", fmt.Sprint(n), "-target", address)
			fmt.Sscanf(flood.says(t, "began"), "%d half %d", &began, &half)
			// While they are: others come in past them (by SYN cookies, once the queue is full).
			b.answersAllowed(t, address)
		})
		report(t, fmt.Sprintf("%d handshakes left half-open", n), b.shape, "%d begun, %d half-open at the listener at once; a new connection meanwhile works", began, half)
		if began != n || half == 0 {
			t.Errorf("%d of %d begun, %d half-open", began, n, half)
		}
		flood.stop(t)
		b.answersAllowed(t, address)
	})
}

// TestForgedHandshakes: SYNs by a raw socket from addresses that nobody has. They are
// redirected to the listener as others are, and end there: its answer has no route from
// the loopback to an address beyond it, for which the kernel lets go of the SYN. Until
// its line has left the connection table each counts as a flow to us: those over
// firewall.DefaultMaxRedirected are refused to the sender.
func TestForgedHandshakes(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, address := flooded(t, start)
		n := scaled(t, 5000, 20000)
		what := fmt.Sprintf("%d forged SYNs", n)
		var said string
		b.strain(t, what, name, func() {
			said = b.job(t, "syns", "-n", fmt.Sprint(n), "-target", address).says(t, "sent")
		})
		began, refusals := time.Now(), 0
		for ; ; refusals++ {
			probe := b.job(t, "idle", "-n", "1", "-target", address)
			open := probe.says(t, "open")
			probe.stop(t)
			if open == "1" {
				break
			}
			if time.Since(began) > 2*time.Minute*generosity {
				t.Fatal("no new connection after the flood")
			}
			time.Sleep(time.Second)
		}
		waited := time.Since(began).Round(time.Second)
		if b.joined == nil {
			report(t, what, b.shape, "none sent: %s", said)
			if !strings.Contains(said, "operation not permitted") {
				t.Errorf("a sealed agent has a raw socket: sent %s", said)
			}
			return
		}
		var sent, refused, half int
		fmt.Sscanf(said, "%d refused %d half %d", &sent, &refused, &half)
		dropped, routeless := b.joined.counter(t, "TcpExtListenDrops"), b.joined.counter(t, "IpOutNoRoutes")
		report(t, what, b.shape, "%d sent, %d refused to the sender, %d let go of by the listener, %d answers without a route, %d half-open; a new connection works %s later, %d were refused before",
			sent, refused, dropped, routeless, half, waited, refusals)
		if dropped < sent || routeless < sent || sent+refused != n || half > 0 || n < firewall.DefaultMaxRedirected && refusals > 0 {
			t.Errorf("%d of %d sent, %d let go of, %d without a route, %d half-open", sent, n, dropped, routeless, half)
		}
	})
}

// counter is one of the namespace's, as the kernel names it.
func (s *sidecar) counter(t *testing.T, name string) (n int) {
	t.Helper()
	for line := range strings.Lines(s.Sh(t, "nstat -asz "+name)) {
		fmt.Sscanf(line, name+" %d", &n)
	}
	return n
}

// answersAllowed waits for a new connection to an allowed address that bytes come
// back over.
func (b *box) answersAllowed(t *testing.T, address string) {
	t.Helper()
	lab.Eventually(t, "a connection after the flood", func() bool {
		probe := b.job(t, "idle", "-n", "1", "-target", address)
		open := probe.says(t, "open")
		probe.stop(t)
		return open == "1"
	})
}

// TestAnAgentThatFillsTheConnectionTable meets limits of ours first (B39). Of the
// kernel's nf_conntrack_max lines (a namespace's own, which only the first namespace may
// set) it can have firewall.DefaultMaxDirect, and long before that each new one costs it
// more: to count them the kernel looks every one up. Nobody else's flows are counted.
// (The sealed shape lets no datagram out that would have a line.)
func TestAnAgentThatFillsTheConnectionTable(t *testing.T) {
	lab.NeedWorld(t)
	b, name, address := flooded(t, startJoined)
	lines := func(of string) int {
		return number(t, strings.TrimSpace(b.joined.Sh(t, "cat /proc/sys/net/netfilter/nf_conntrack_"+of)))
	}
	most := lines("max")
	// Lest lines leave before the table is full.
	b.joined.Sh(t, "echo 600 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
	lasts := time.Duration(scaled(t, 5, 120)) * time.Second
	what := fmt.Sprintf("lines of the connection table, as many as %s allow for", lasts)
	shut := targetsOf("joined", 8, 3)[7].addr
	tapped := openTap(t, b.link, addrsOf([]target{{addr: shut}}))
	var sent, accepted, fullest int
	b.strain(t, what, name, func() {
		flood := b.job(t, "spread", "-n", "400000", "-time", lasts.String(), "-target", address)
		fmt.Sscanf(flood.says(t, "sent"), "%d accepted %d", &sent, &accepted)
		fullest = lines("count")
		b.joined.refused(t, "udp", net.JoinHostPort(shut.String(), "7"))
		b.answersAllowed(t, address)
	})
	for _, s := range tapped.seen(t) {
		t.Errorf("%d bytes (out: %v) of %s, which is denied", s.bytes, s.out, s.peer)
		break
	}
	limited := uint64(0)
	lab.Eventually(t, "what was over the limit in the log", func() bool {
		limited = sumLogged(t, b, func(e audit.Event) bool { return e.Reason == policy.ReasonLimit })
		return limited+lostPackets(b.log()) >= uint64(sent-accepted)
	})
	report(t, what, "joined", "%d tried, %d had; %d lines of %d in use; %d refused with reason limit in the log; new connections work, nothing denied passed",
		sent, accepted, fullest, most, limited)
	if accepted > firewall.DefaultMaxDirect {
		t.Errorf("it had %d lines, the limit is %d", accepted, firewall.DefaultMaxDirect)
	}
	// The agent's, and those of what else runs in the namespace.
	if fullest > firewall.DefaultMaxDirect+firewall.DefaultMaxRedirected || fullest > most/2 {
		t.Errorf("the table has %d lines of %d", fullest, most)
	}
}
