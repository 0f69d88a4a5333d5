//go:build linux

package main

import "fmt"

// setup is P4: what a proxy adds to the time from connect to the first byte of
// the answer, p50 and p99 at most haproxy's; at most 220 µs of processor time a
// connection (stretch 160), which was haproxy's.
func setup(l *lab) (section, error) {
	s := section{columns: []string{"peer", "p50 µs", "p99 µs", "added p50", "added p99", "proxy µs CPU a connection", "connections/s ÷ direct"}}
	one, err := l.rounds(l.peers, func(p *peer) (sample, error) { return l.load(p, "setup", l.size.connections, 1) })
	if err != nil {
		return s, err
	}
	many, err := l.rounds(l.peers, func(p *peer) (sample, error) { return l.load(p, "setup", l.size.connections, 16) })
	if err != nil {
		return s, err
	}
	rate := func(name string) figure {
		return many.of(name, func(s sample) float64 { return s.Units / s.Seconds })
	}
	cost := func(name string) figure { return one.of(name, sample.proxyEach) }
	for _, p := range l.peers {
		s.rows = append(s.rows, []string{
			p.name, one.of(p.name, sample.p50).format("%.0f"), one.of(p.name, sample.p99).format("%.0f"),
			fmt.Sprintf("%.0f", one.added(p.name, sample.p50).median), fmt.Sprintf("%.0f", one.added(p.name, sample.p99).median),
			cost(p.name).format("%.0f"), fmt.Sprintf("%.2f", rate(p.name).over(rate(direct))),
		})
	}
	s.verdicts = append(s.verdicts,
		atMost("added p50 ÷ haproxy's", one.added(ours, sample.p50).over(one.added("haproxy", sample.p50)), 1).tells(),
		atMost("added p99 ÷ haproxy's", one.added(ours, sample.p99).over(one.added("haproxy", sample.p99)), 1).tells(),
		atMost("CPU a connection ÷ haproxy's", cost(ours).over(cost("haproxy")), 1).gates(),
		atMost("µs CPU a connection", cost(ours).median, 220),
		atMost("µs CPU a connection, stretch", cost(ours).median, 160))
	return s, nil
}
