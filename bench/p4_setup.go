//go:build linux

package main

import "fmt"

// setup is P4: what a proxy adds to the time from connect to the first byte of
// the answer, p50 and p99 at most haproxy's; at most 220 µs of processor time a
// connection (stretch 160).
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
	p50 := func(name string) figure { return figureOf(one[name], func(s sample) float64 { return s.P50 }) }
	p99 := func(name string) figure { return figureOf(one[name], func(s sample) float64 { return s.P99 }) }
	cpu := func(name string) figure {
		return figureOf(one[name], func(s sample) float64 { return s.proxy / s.Units * 1e6 })
	}
	rate := func(name string) float64 {
		return figureOf(many[name], func(s sample) float64 { return s.Units / s.Seconds }).median
	}
	added := func(f func(string) figure, name string) figure {
		return figure{median: f(name).median - f(direct).median}
	}
	for _, p := range l.peers {
		s.rows = append(s.rows, []string{
			p.name, p50(p.name).format("%.0f"), p99(p.name).format("%.0f"),
			fmt.Sprintf("%.0f", added(p50, p.name).median), fmt.Sprintf("%.0f", added(p99, p.name).median),
			cpu(p.name).format("%.0f"), fmt.Sprintf("%.2f", rate(p.name)/rate(direct)),
		})
	}
	has := l.named("haproxy") != nil
	s.verdicts = against(s.verdicts, "added p50", "haproxy", added(p50, "exeat"), added(p50, "haproxy"), has, 1, false)
	s.verdicts = against(s.verdicts, "added p99", "haproxy", added(p99, "exeat"), added(p99, "haproxy"), has, 1, false)
	s.verdicts = append(s.verdicts,
		verdict{"µs CPU a connection", cpu("exeat").median, 220, false, false},
		verdict{"µs CPU a connection, stretch", cpu("exeat").median, 160, false, false})
	return s, nil
}
