package firewall

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// agentMany sends a datagram to each of so many ports of an address, and prints how
// many were not refused.
func agentMany(args []string) error {
	to, err := netip.ParseAddr(args[0])
	if err != nil {
		return err
	}
	first, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	passed := 0
	for i := range n {
		_, err := c.WriteToUDPAddrPort([]byte("many"), netip.AddrPortFrom(to, uint16(first+i)))
		if err == nil {
			passed++
		} else if !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	fmt.Printf("%d ", passed)
	return nil
}

// TestFlowsStraightOutAreLimited is B39's other half: those that are redirected are
// counted apart.
func TestFlowsStraightOutAreLimited(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	const limit = 20
	l.enforce(fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":[%q]}`, allowed4), func(in *JoinedInput) { in.MaxDirect = limit })
	sh(t, "echo 600 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout") // none leaves meanwhile
	for _, c := range []struct {
		why, want string
		first     int
	}{
		{"so many may be open", fmt.Sprint(limit, " done"), 10000},
		{"and then none more", "0 done", 20000},
	} {
		if got := l.agent("many", allowed4, strconv.Itoa(c.first), strconv.Itoa(2*limit)); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
	// The kernel's count is the rule's: rules that are made anew begin at nothing.
	if err := l.fw.Apply(); err != nil {
		t.Fatal(err)
	}
	if got := l.agent("many", allowed4, "30000", strconv.Itoa(2*limit)); got != fmt.Sprint(limit, " done") {
		t.Errorf("after the rules were made anew: %s, want %d", got, limit)
	}
}
