//go:build linux

package sidecar

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/probe"
)

// claimed gives a UDP socket that is claimed, as a probe does.
func claimed(t *testing.T, c *claims, to netip.Addr) (port uint16) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := c.claim(probe.Socket{FD: fd, Protocol: policy.UDP, To: to}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(name.(*unix.SockaddrInet4).Port)
}

func someClaims(t *testing.T) *claims {
	t.Helper()
	c, err := newClaims()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestOnlyWhatComesOfAProbesOwnSocketIsQuiet(t *testing.T) {
	to := netip.MustParseAddr("203.0.113.66")
	local := netip.MustParseAddr("198.51.100.2")
	c := someClaims(t)
	port := claimed(t, c, to)
	at := netip.AddrPortFrom(local, port)
	decision := func(e audit.Event) audit.Event {
		e.Kind = audit.KindDecision
		return e
	}
	for name, test := range map[string]struct {
		event audit.Event
		want  bool
	}{
		"its packet": {decision(audit.Event{
			Channel: audit.ChannelPacket, Client: at, Addr: to, Port: 9, Protocol: policy.UDP,
		}), true},
		"its packet, redirected to us": {decision(audit.Event{
			Channel: audit.ChannelPacket, Client: at, Addr: netip.MustParseAddr("127.0.0.1"), Protocol: policy.UDP,
		}), true},
		"its question": {decision(audit.Event{Channel: audit.ChannelDNS, Protocol: policy.UDP, Client: at, Name: probeName}), true},
		"its question for our pinned name, allowed": {decision(audit.Event{
			Channel: audit.ChannelDNS, Protocol: policy.UDP, Client: at, Name: probeName, Verdict: policy.Allow,
		}), true},
		"a question from the same port of another protocol": {decision(audit.Event{
			Channel: audit.ChannelDNS, Protocol: policy.TCP, Client: at, Name: probeName,
		}), false},
		"a question from the same port of the other family": {decision(audit.Event{
			Channel: audit.ChannelDNS, Protocol: policy.UDP, Client: netip.AddrPortFrom(netip.MustParseAddr("2001:db8::2"), port), Name: probeName,
		}), false},
		"the same packet from another port": {decision(audit.Event{
			Channel: audit.ChannelPacket, Client: netip.AddrPortFrom(local, port^1), Addr: to, Port: 9, Protocol: policy.UDP,
		}), false},
		"the same packet from nowhere": {decision(audit.Event{
			Channel: audit.ChannelPacket, Addr: to, Port: 9, Protocol: policy.UDP,
		}), false},
		"a forged packet to elsewhere": {decision(audit.Event{
			Channel: audit.ChannelPacket, Client: at, Addr: netip.MustParseAddr("203.0.113.67"), Protocol: policy.UDP,
		}), false},
		"the same port of another protocol": {decision(audit.Event{
			Channel: audit.ChannelPacket, Client: at, Addr: to, Port: 9, Protocol: policy.TCP,
		}), false},
		"an allowed name": {decision(audit.Event{
			Channel: audit.ChannelDNS, Protocol: policy.UDP, Client: at, Name: "pypi.test", Verdict: policy.Allow,
		}), false},
		"a packet of the far side's": {decision(audit.Event{
			Channel: audit.ChannelPacket, Client: netip.AddrPortFrom(to, port), Addr: to, Protocol: policy.UDP,
		}), false},
		"a swap": {audit.Event{Kind: audit.KindSwap, Client: at}, false},
	} {
		if got := c.cover(test.event); got != test.want {
			t.Errorf("%s: quiet %v, want %v", name, got, test.want)
		}
	}
}

func TestAProbesSocketCoversNoMoreThanItMayCause(t *testing.T) {
	to := netip.MustParseAddr("203.0.113.66")
	c := someClaims(t)
	port := claimed(t, c, to)
	e := audit.Event{
		Kind: audit.KindDecision, Channel: audit.ChannelPacket, Protocol: policy.UDP,
		Client: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.2"), port), Addr: to,
	}
	quiet := 0
	for range 1000 {
		if c.cover(e) {
			quiet++
		}
	}
	if quiet != maxDecisions {
		t.Errorf("%d of 1000 packets were quiet, want %d", quiet, maxDecisions)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if c.some.Load() {
		t.Error("something is claimed after the end")
	}
}

// TestAClaimedPortIsNobodyElses: as long as a decision can be taken for a probe's,
// the sandbox cannot have the probe's port, reuse or not.
func TestAClaimedPortIsNobodyElses(t *testing.T) {
	c := someClaims(t)
	port := claimed(t, c, netip.MustParseAddr("203.0.113.66"))
	take := func() error {
		config := net.ListenConfig{Control: reusing}
		conn, err := config.ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if err := take(); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("bind beside a claim: %v, want it in use", err)
	}
	if err := c.expire(time.Now().Add(claimShut + time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := take(); !errors.Is(err, unix.EADDRINUSE) || !c.some.Load() {
		t.Errorf("bind when the socket was shut: %v, want it in use and still claimed", err)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if err := take(); err != nil {
		t.Errorf("bind after the end: %v", err)
	}
}

// reusing lets a socket share its port where the other lets it, too.
func reusing(_, _ string, c syscall.RawConn) error {
	var inner error
	err := c.Control(func(fd uintptr) {
		for _, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
			inner = errors.Join(inner, os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, 1)))
		}
	})
	return errors.Join(err, inner)
}
