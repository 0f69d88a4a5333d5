//go:build linux

package bypass

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/probe"
)

// flows is how many the flood opens of each kind: more than are redirected at
// once, and little beside the table's own limit.
const flows = firewall.DefaultMaxRedirected + 4000

// TestTheConnectionTableCannotBeFilled is B39: what an agent opens to itself is
// not tracked, what is redirected is counted, and the sidecar still works.
func TestTheConnectionTableCannotBeFilled(t *testing.T) {
	set, ok := inLabOf()
	if !ok {
		if outsideWorld() {
			require.Root(t)
			runLab(t, cgroup2(t), capabilitySets()[0], t.Name())
		}
		return
	}
	l := newLab(t, set)
	l.enforce(fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":[%q]}`, allowed4))
	before := tracked(t)
	cmd := l.agent("/proc/self/exe")
	cmd.Env = append(cmd.Env, floodVariable+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after := tracked(t)
	t.Logf("%d flows before %d to itself and %d questions, %d after", before, flows, flows, after)
	// The sidecar's own few besides.
	if limit := before + firewall.DefaultMaxRedirected + 500; after > limit {
		t.Errorf("%d flows are tracked, want %d at most", after, limit)
	}
	for _, r := range l.attack("flooded", []string{"B01", "B63"}) {
		if r.arrived > 0 || r.Verdict == probe.Leak {
			t.Errorf("%s %s: %s, %d frames", r.ID, r.Attack, r.Seen, r.arrived)
		}
	}
	// The sidecar's own flows (we are in its control group) are not held up.
	began := time.Now()
	c, err := net.DialTimeout("tcp", allowed4+":22", 5*time.Second)
	if err != nil {
		t.Fatalf("after %s: %v", time.Since(began), err)
	}
	c.Close()
}

// tracked is how many flows the namespace's connection table holds.
func tracked(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// flood opens flows to its own loopback, which is nobody's to count, and to resolvers
// that are not there.
func flood() int {
	refused := 0
	for i := range flows {
		for _, to := range []string{
			net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+i%20000)),
			fmt.Sprintf("203.0.113.%d:53", 20+i%200),
		} {
			c, err := net.Dial("udp", to)
			if err != nil {
				continue // ports run out: as good a flood
			}
			if _, err := c.Write([]byte("flood")); err != nil {
				c.Close()
				if strings.HasPrefix(to, "127.") && errors.Is(err, unix.EPERM) {
					refused++
				}
				continue // refused: what the limit is for
			}
			c.Close()
		}
	}
	// A source port may be the number of a listener's, whose flows are counted.
	if refused > flows/10 {
		fmt.Printf("the rules refused %d of what it sends to itself\n", refused)
		return 1
	}
	return 0
}
