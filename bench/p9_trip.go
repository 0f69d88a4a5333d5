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
	p50 := func(name string) figure { return figureOf(taken[name], func(s sample) float64 { return s.P50 }) }
	added := func(name string) figure { return figure{median: p50(name).median - p50(direct).median} }
	for _, p := range l.peers {
		s.rows = append(s.rows, []string{
			p.name, p50(p.name).format("%.1f"),
			figureOf(taken[p.name], func(s sample) float64 { return s.P99 }).format("%.0f"),
			fmt.Sprintf("%.1f", added(p.name).median),
			figureOf(taken[p.name], func(s sample) float64 { return s.proxy / s.Units * 1e6 }).format("%.1f"),
		})
	}
	s.verdicts = against(s.verdicts, "added p50", "haproxy", added("exeat"), added("haproxy"), l.named("haproxy") != nil, 1, false)
	return s, nil
}
