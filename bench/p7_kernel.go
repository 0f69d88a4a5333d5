//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netns"

	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// enforcer is the joined shape's ruleset, in a namespace where nothing else is.
func enforcer(c *policy.Compiled) (fw *firewall.Firewall, done func() error, err error) {
	ns, err := newNamespace()
	if err != nil {
		return nil, nil, err
	}
	fw, k, err := enforce(ns, c)
	if err != nil {
		return nil, nil, errors.Join(err, ns.Close())
	}
	return fw, func() error { return errors.Join(k.Close(), ns.Close()) }, nil
}

// enforce puts the joined shape's ruleset in force in a namespace.
func enforce(ns netns.NsHandle, c *policy.Compiled) (*firewall.Firewall, *firewall.Kernel, error) {
	k, err := firewall.OpenNamespace(int(ns))
	if err != nil {
		return nil, nil, err
	}
	ports := firewall.Ports{TCP: 41001, DNS: 41002, Explicit: 41003}
	fw := firewall.New(k, firewall.JoinedInput{
		V4: ports, V6: ports, Own: firewall.Own{UID: peerUID}, Secrets: firewall.NewSecrets(firewall.ProbeMark),
		ProbeMark: firewall.ProbeMark, Policy: c, LogGroup: firewall.DefaultLogGroup,
	}, nil)
	if err := fw.Apply(); err != nil {
		return nil, nil, errors.Join(err, k.Close())
	}
	return fw, k, nil
}

// answers is P6: an answer whose address must reach the kernel before it is given
// waits at most 60 µs for that (p50), 300 µs at p99.
func answers(l *lab) (section, error) {
	s := section{columns: []string{"", "p50 µs", "p99 µs"}}
	fw, done, err := enforcer(policy.Compile(policy.Document{
		Mode: policy.ModeAllowlist, Allowed: []policy.Target{{Name: "bench.test", Wildcard: true, Port: 8443}},
	}, policy.Options{}))
	if err != nil {
		return s, err
	}
	times := make([]time.Duration, 0, l.size.trips)
	for i := range cap(times) {
		at := []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
		start := time.Now()
		if err := fw.AddAttributed("a.bench.test", at, time.Minute); err != nil {
			return s, errors.Join(err, done())
		}
		times = append(times, time.Since(start))
	}
	r := timed(times)
	s.rows = append(s.rows, []string{"an address more", fmt.Sprintf("%.0f", r.P50), fmt.Sprintf("%.0f", r.P99)})
	s.verdicts = append(s.verdicts, atMost("p50 µs", r.P50, 60), atMost("p99 µs", r.P99, 300))
	return s, done()
}

// swapSizes are how many targets a policy of P7 has, and how many ms a swap of them
// all may take.
var swapSizes = []struct {
	targets int
	limit   float64
}{{1000, 5}, {10000, 40}, {100000, 450}}

// swaps is P7: a swap takes at most 1 ms for one target, whatever the size of the
// policy, and for 1k, 10k and 100k targets at most 5, 40 and 450 ms.
func swaps(l *lab) (section, error) {
	s := section{
		columns: []string{"targets", "ms, one more allowed", "ms, one fewer", "ms, all of them changed", "ms to compile before"},
		notes:   []string{"a swap by the API parses and compiles its document first, whatever differs: that is no part of these times"},
	}
	for _, size := range swapSizes {
		base := inNet(10, size.targets)
		extra := append(slices.Clone(base), policy.Target{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Port: 443, Proto: policy.ProtocolTCP})
		more, fewer, err := timeSwaps(l, base, extra)
		if err != nil {
			return s, err
		}
		there, back, err := timeSwaps(l, base, inNet(11, size.targets))
		if err != nil {
			return s, err
		}
		every := figureOfValues(append(there, back...))
		one, less := figureOfValues(more), figureOfValues(fewer)
		s.rows = append(s.rows, []string{
			fmt.Sprint(size.targets), one.format("%.2f"), less.format("%.2f"), every.format("%.1f"),
			timeCompile(l, base).format("%.1f"),
		})
		s.verdicts = append(s.verdicts,
			atMost(fmt.Sprintf("ms to allow one more, of %d", size.targets), one.median, 1),
			atMost(fmt.Sprintf("ms to allow one fewer, of %d", size.targets), less.median, 1),
			atMost(fmt.Sprintf("ms to swap %d targets", size.targets), every.median, size.limit))
	}
	return s, nil
}

// timeCompile is the ms that compiling a policy takes.
func timeCompile(l *lab, allowed []policy.Target) figure {
	var times []float64
	for range l.size.rounds {
		start := time.Now()
		policy.Compile(policy.Document{Mode: policy.ModeAllowlist, Allowed: allowed}, policy.Options{})
		times = append(times, float64(time.Since(start).Nanoseconds())/1e6)
	}
	return figureOfValues(times)
}

// inNet is n single addresses, no two of them adjacent.
func inNet(net byte, n int) []policy.Target {
	all := make([]policy.Target, n)
	for i := range all {
		addr := netip.AddrFrom4([4]byte{net, byte(i >> 15), byte(i >> 7), byte(i << 1)})
		all[i] = policy.Target{Prefix: netip.PrefixFrom(addr, 32), Port: 443, Proto: policy.ProtocolTCP}
	}
	return all
}

// timeSwaps swaps from one list of targets to another and back, and gives the ms
// that each took.
func timeSwaps(l *lab, one, other []policy.Target) (there, back []float64, err error) {
	compiled := func(generation uint64, allowed []policy.Target) *policy.Compiled {
		return policy.Compile(policy.Document{Mode: policy.ModeAllowlist, Allowed: allowed}, policy.Options{Generation: generation})
	}
	from, to := compiled(1, one), compiled(2, other)
	fw, done, err := enforcer(from)
	if err != nil {
		return nil, nil, err
	}
	for range l.size.rounds {
		forth, err := fw.SwapPolicy(to, nil)
		if err != nil {
			return nil, nil, errors.Join(err, done())
		}
		home, err := fw.SwapPolicy(from, nil)
		if err != nil {
			return nil, nil, errors.Join(err, done())
		}
		there = append(there, float64(forth.Took.Nanoseconds())/1e6)
		back = append(back, float64(home.Took.Nanoseconds())/1e6)
	}
	return there, back, done()
}
