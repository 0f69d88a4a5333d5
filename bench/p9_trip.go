//go:build linux

package main

import "fmt"

// roundTrip is P9: what a proxy adds to the round trip of an established flow is
// at most what haproxy adds.
func roundTrip(l *lab) (section, error) {
	s := section{columns: []string{"peer", "p50 µs", "p99 µs", "added p50", "proxy µs CPU a trip"}}
	taken, err := l.rounds(l.peers, func(p *peer) (sample, error) { return l.load(p, "trips", l.size.trips, 1) })
	if err != nil {
		return s, err
	}
	for _, p := range l.peers {
		s.rows = append(s.rows, []string{
			p.name, taken.of(p.name, sample.p50).format("%.1f"), taken.of(p.name, sample.p99).format("%.0f"),
			fmt.Sprintf("%.1f", taken.added(p.name, sample.p50).median), taken.of(p.name, sample.proxyEach).format("%.1f"),
		})
	}
	s.verdicts = append(s.verdicts,
		atMost("added p50 ÷ haproxy's", taken.added(ours, sample.p50).over(taken.added("haproxy", sample.p50)), 1).tells(),
		atMost("proxy CPU a trip ÷ haproxy's", taken.of(ours, sample.proxyEach).over(taken.of("haproxy", sample.proxyEach)), 1).gates())
	return s, nil
}
