//go:build linux

package main

import "fmt"

// bulk is P1: 1 and 4 streams downloaded; processor seconds of all processes per
// gigabyte at most haproxy's, the proxy's at most .27, the rate at least .60 of
// direct and twice smokescreen's and squid's.
func bulk(l *lab) (section, error) {
	s := section{columns: []string{"streams", "peer", "rate ÷ direct", "Gbit/s", "proxy CPU-s/GB", "all CPU-s/GB"}}
	for _, streams := range []int{1, 4} {
		taken, err := l.rounds(l.peers, func(p *peer) (sample, error) { return l.load(p, "bulk", l.size.bulkBytes, streams) })
		if err != nil {
			return s, err
		}
		rate := func(name string) figure {
			return figureOf(taken[name], func(s sample) float64 { return s.Units * 8 / 1e9 / s.Seconds })
		}
		perGB := func(name string, of func(s sample) float64) figure {
			return figureOf(taken[name], func(s sample) float64 { return of(s) / (s.Units / 1e9) })
		}
		proxyOnly := func(s sample) float64 { return s.proxy }
		for _, p := range l.peers {
			s.rows = append(s.rows, []string{
				fmt.Sprint(streams), p.name, fmt.Sprintf("%.2f", rate(p.name).median/rate(direct).median),
				rate(p.name).format("%.1f"), perGB(p.name, proxyOnly).format("%.3f"), perGB(p.name, sample.all).format("%.3f"),
			})
		}
		label := fmt.Sprintf("%d streams: ", streams)
		s.verdicts = append(s.verdicts,
			verdict{label + "proxy CPU-s/GB", perGB("exeat", proxyOnly).median, .27, false, false},
			verdict{label + "rate ÷ direct", rate("exeat").median / rate(direct).median, .60, true, true})
		s.verdicts = against(s.verdicts, label+"all CPU-s/GB", "haproxy", perGB("exeat", sample.all), perGB("haproxy", sample.all), l.named("haproxy") != nil, 1, false)
		for _, name := range []string{"squid", "smokescreen"} {
			if l.named(name) != nil {
				s.verdicts = against(s.verdicts, label+"rate", name, rate("exeat"), rate(name), true, 2, true)
			}
		}
	}
	return s, nil
}
