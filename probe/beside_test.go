//go:build linux

package probe

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

const lonely = "ip link set lo up; ip link add eth0 type veth peer name far0; ip addr add 198.51.100.2/24 dev eth0; ip link set eth0 up; ip link set far0 up; ip route add default via 198.51.100.1; ip neigh add 198.51.100.1 lladdr 02:00:00:00:00:01 dev eth0; sysctl -qw net.ipv4.ping_group_range='0 0'"

// TestWhatThePolicyAllowsIsNotTried, nor what only a probe inside can tell: not one
// socket is made.
func TestWhatThePolicyAllowsIsNotTried(t *testing.T) {
	if !isolated(t) {
		return
	}
	line(t, lonely)
	var claimed []Socket
	report, err := Run(t.Context(), Options{Safe: true, Beside: &Beside{
		Allowed: func(policy.Request) bool { return true },
		Claim: func(s Socket) error {
			claimed = append(claimed, s)
			return nil
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, c := range Cases() {
		own[c.ID+c.Attack] = c.Own != ""
	}
	allowed := 0
	for _, f := range report.Cases {
		switch {
		case own[f.ID+f.Attack] && (f.Verdict != NotProven || f.Seen != "not tried"):
			t.Errorf("%s %s: %s, %s; want it not tried", f.ID, f.Attack, f.Verdict, f.Seen)
		case f.Verdict == Leak:
			t.Errorf("%s %s: a leak of what is allowed: %s", f.ID, f.Attack, f.Seen)
		case f.Why == allowedByPolicy:
			allowed++
		}
	}
	if allowed < 60 || len(claimed) > 0 {
		t.Errorf("%d cases were left out as allowed, and %d sockets made: %+v", allowed, len(claimed), claimed)
	}
}

// TestEachSocketIsClaimedBeforeItSends, of every protocol and kind of case.
func TestEachSocketIsClaimedBeforeItSends(t *testing.T) {
	if !isolated(t) {
		return
	}
	line(t, lonely)
	to := netip.MustParseAddr("203.0.113.66")
	var claimed []Socket
	_, err := Run(t.Context(), Options{IDs: []string{"B01", "B03", "B09", "B23", "B63"}, Beside: &Beside{
		Claim: func(s Socket) error {
			name, err := unix.Getsockname(s.FD)
			if v4, ok := name.(*unix.SockaddrInet4); err != nil || ok && v4.Port != 0 {
				t.Errorf("%+v is bound already: %+v, %v", s, name, err)
			}
			if _, err := unix.Getpeername(s.FD); err == nil {
				t.Errorf("%+v is connected already", s)
			}
			claimed = append(claimed, s)
			return nil
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP, policy.ICMP} {
		if !slices.ContainsFunc(claimed, func(s Socket) bool { return s.Protocol == protocol && s.To == to && !s.IPv6 }) {
			t.Errorf("no socket of %s to %s was claimed: %+v", protocol, to, claimed)
		}
	}
	if !slices.ContainsFunc(claimed, func(s Socket) bool { return s.IPv6 && s.To == to }) {
		t.Errorf("the IPv6 socket to an IPv4 address was not claimed: %+v", claimed)
	}
}
