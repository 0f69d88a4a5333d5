//go:build linux

package torture

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/policy"
)

// TestDeniedPacketsAtARate: they are refused in the kernel, and what the log cannot
// hold it says the number of.
func TestDeniedPacketsAtARate(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, _ := flooded(t, start)
		var sent, accepted uint64
		var took int
		b.strain(t, "denied packets at 50,000 a second", name, func() {
			lasts := time.Duration(scaled(t, 2, 10)) * time.Second
			fmt.Sscanf(b.job(t, "packets", "-time", lasts.String()).says(t, "sent"), "%d accepted %d took %d", &sent, &accepted, &took)
		})
		match := func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "" }
		logged, lost := uint64(0), uint64(0)
		for range 150 {
			if logged, lost = sumLogged(t, b, match), lostPackets(b.log()); logged+lost >= sent {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		report(t, fmt.Sprintf("%d packets denied", sent), b.shape, "%d a second; the log accounts for %d, and says that %d were judged and not told of",
			sent*1000/uint64(max(1, took)), logged, lost)
		if logged+lost < sent {
			t.Errorf("%d packets sent, the log accounts for %d and %d", sent, logged, lost)
		}
	})
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

// TestHalfOpenConnections: SYNs that nobody completes harm nobody. They need a raw
// socket: where there is no NET_RAW they cannot be sent.
func TestHalfOpenConnections(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, address := flooded(t, start)
		n := scaled(t, 5000, 200000)
		var sent, refused, waiting int
		b.strain(t, fmt.Sprintf("%d SYNs without an ACK", n), name, func() {
			said := b.job(t, "syns", "-n", fmt.Sprint(n), "-target", address).says(t, "sent")
			fmt.Sscanf(said, "%d refused %d", &sent, &refused)
			if b.joined == nil {
				if !strings.Contains(said, "operation not permitted") {
					t.Errorf("a sealed agent has a raw socket: sent %s", said)
				}
				return
			}
			waiting, _ = strconv.Atoi(strings.TrimSpace(b.joined.Sh(t, "ss -Htn state syn-recv | wc -l")))
		})
		b.answersAllowed(t, address)
		report(t, fmt.Sprintf("%d SYNs without an ACK", n), b.shape, "%d sent, %d refused to the sender, %d denied in the log, %d half-open at the listener; a new connection afterwards works",
			sent, refused, sumLogged(t, b, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "" }), waiting)
	})
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

// TestAnAgentThatFillsTheConnectionTable: the kernel's table has room for
// nf_conntrack_max lines, a namespace's own number of them, which only the first
// namespace may set: the short variant does not fill it. What is new when it is full
// is dropped, so nothing leaks; and lines that were never answered make room.
// (The sealed shape lets no datagram out that would have a line.)
func TestAnAgentThatFillsTheConnectionTable(t *testing.T) {
	lab.NeedWorld(t)
	b, name, address := flooded(t, startJoined)
	number := func(of string) (n int) {
		n, _ = strconv.Atoi(strings.TrimSpace(b.joined.Sh(t, "cat /proc/sys/net/netfilter/nf_conntrack_"+of)))
		return n
	}
	most := number("max")
	// Lest lines leave before the table is full.
	b.joined.Sh(t, "echo 600 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
	n := min(scaled(t, 20000, 400000), 3*most/2)
	shut := targetsOf("joined", 8, 3)[7].addr
	tapped := openTap(t, b.link, addrsOf([]target{{addr: shut}}))
	fullest, said := 0, ""
	b.strain(t, fmt.Sprintf("%d lines of the connection table", n), name, func() {
		said = b.job(t, "spread", "-n", fmt.Sprint(n), "-target", address).says(t, "sent")
		fullest = number("count")
		b.joined.refused(t, "udp", net.JoinHostPort(shut.String(), "7"))
		b.answersAllowed(t, address)
	})
	for _, s := range tapped.seen(t) {
		t.Errorf("%d bytes (out: %v) of %s, which is denied", s.bytes, s.out, s.peer)
		break
	}
	report(t, fmt.Sprintf("%d lines of the connection table", n), "joined", "sent %s; %d lines of %d in use; new connections work, nothing denied passed", said, fullest, most)
	if fullest < min(n, most)/2 {
		t.Errorf("the table has %d lines only", fullest)
	}
}
