package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/exeat/exeat/policy"
)

// quantiles reports the median and the 99th percentile of what was measured.
func quantiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

func benchFirewall(b *testing.B, c *policy.Compiled) *Firewall {
	sh(b, "ip link set lo up")
	k, err := Open()
	if err != nil {
		b.Fatal(err)
	}
	in := basicInput(c)
	fw := New(k, in, nil)
	if err := fw.Apply(); err != nil {
		b.Fatal(err)
	}
	return fw
}

// P6: what an answer waits for before it may be given.
func BenchmarkAttributing(b *testing.B) {
	if !namespace(b) {
		return
	}
	fw := benchFirewall(b, compiled(b, `{"network_mode":"allowlist","allowed_hosts":["*.example.com:8443"]}`))
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		start := time.Now()
		if err := fw.AddAttributed("a.example.com", []netip.Addr{addr}, time.Minute); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	quantiles(b, took)
}

func hosts(n int, extra ...string) policy.Document {
	d := policy.Document{Mode: policy.ModeAllowlist}
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		d.Allowed = append(d.Allowed, policy.Target{Prefix: netip.PrefixFrom(a, 32), Port: 443, Proto: policy.ProtocolTCP})
	}
	for _, s := range extra {
		d.Allowed = append(d.Allowed, policy.Target{Prefix: netip.MustParsePrefix(s), Port: 443})
	}
	return d
}

// P7: a swap by one target, at several sizes of policy, then of all targets.
func BenchmarkSwapOfOneTarget(b *testing.B) {
	if !namespace(b) {
		return
	}
	for _, n := range []int{10, 1000, 10000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			both := [2]*policy.Compiled{
				policy.Compile(hosts(n), policy.Options{Generation: 1}),
				policy.Compile(hosts(n, "192.0.2.1/32"), policy.Options{Generation: 2}),
			}
			fw := benchFirewall(b, both[0])
			var took []time.Duration
			for i := 1; b.Loop(); i++ {
				swap, err := fw.SwapPolicy(both[i%2], nil)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, swap.Took)
			}
			quantiles(b, took)
		})
	}
}

func BenchmarkSwapOfEveryTarget(b *testing.B) {
	if !namespace(b) {
		return
	}
	for _, n := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			other := hosts(n)
			for i := range other.Allowed {
				a := other.Allowed[i].Prefix.Addr().As4()
				a[0] = 11
				other.Allowed[i].Prefix = netip.PrefixFrom(netip.AddrFrom4(a), 32)
			}
			both := [2]*policy.Compiled{policy.Compile(hosts(n), policy.Options{}), policy.Compile(other, policy.Options{})}
			fw := benchFirewall(b, both[0])
			var took []time.Duration
			for i := 1; b.Loop(); i++ {
				swap, err := fw.SwapPolicy(both[i%2], nil)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, swap.Took)
			}
			quantiles(b, took)
		})
	}
}

// P8: a hundred silent flows revoked among five thousand.
func BenchmarkRevocation(b *testing.B) {
	if !grouped(b) {
		return
	}
	l := newLab(b)
	l.enforce(`"public"`)
	agent := l.agentCommand("hold", net.JoinHostPort(allowed4, "22"), "4900", net.JoinHostPort(denied4, "22"), "100")
	in, err := agent.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := agent.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("agent: %s", buf[:n])
	var took, cut []time.Duration
	revoked := 0
	for range 1 {
		swap, err := l.fw.SwapPolicy(compiled(b, fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s"]}`, allowed4)), nil)
		if err != nil {
			b.Fatal(err)
		}
		took, cut = append(took, swap.Took), append(cut, swap.Cut)
		revoked = max(revoked, len(swap.Revoked))
	}
	b.ReportMetric(float64(took[0].Microseconds()), "enforced-µs")
	b.ReportMetric(float64(cut[0].Microseconds()), "cut-µs")
	b.ReportMetric(float64(revoked), "revoked")
	if err := in.Close(); err != nil {
		b.Fatal(err)
	}
	if err := agent.Wait(); err != nil {
		b.Fatal(err)
	}
}

// agentHold holds TCP connections open until its input ends.
func agentHold(args []string) error {
	opened := 0
	for i := 0; i+1 < len(args); i += 2 {
		var n int
		if _, err := fmt.Sscan(args[i+1], &n); err != nil {
			return err
		}
		for range n {
			if _, err := net.Dial("tcp", args[i]); err != nil {
				return err
			}
			opened++
		}
	}
	fmt.Println("opened", opened)
	buf := make([]byte, 1)
	if _, err := stdin().Read(buf); err != nil {
		return nil
	}
	return nil
}
