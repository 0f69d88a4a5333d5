//go:build linux

package main

import (
	"errors"
	"fmt"
)

// bulkBesideIdle is P2: bulk beside 2,000 idle tunnels, as an unprivileged uid,
// reaches .9 of its rate alone; so a gigabyte may cost the proxy that much more.
func bulkBesideIdle(l *lab) (section, error) {
	s := section{columns: []string{"peer", "rate beside ÷ alone", "proxy CPU-s/GB beside ÷ alone"}}
	for _, name := range []string{ours, "haproxy"} {
		p := l.named(name)
		if p == nil {
			continue
		}
		var rates, costs []float64
		for range l.size.rounds {
			rate, cost, err := besideIdle(l, p)
			if err != nil {
				return s, err
			}
			rates, costs = append(rates, rate), append(costs, cost)
		}
		rate, cost := figureOfValues(rates), figureOfValues(costs)
		s.rows = append(s.rows, []string{name, rate.format("%.2f"), cost.format("%.2f")})
		if name == ours {
			s.verdicts = append(s.verdicts,
				atLeast(fmt.Sprintf("rate beside %d idle tunnels ÷ alone", l.size.beside), rate.median, .9).tells(),
				atMost(fmt.Sprintf("proxy CPU-s/GB beside %d idle tunnels ÷ alone", l.size.beside), cost.median, 1/.9).gates())
		}
	}
	return s, nil
}

// besideIdle measures alone, then beside idle tunnels, and gives the ratios.
func besideIdle(l *lab, p *peer) (rate, cost float64, err error) {
	alone, err := l.load(p, "bulk", l.size.bulkBytes, 1)
	if err != nil {
		return 0, 0, err
	}
	held, err := l.hold(p, l.size.beside)
	if err != nil {
		return 0, 0, err
	}
	beside, err := l.load(p, "bulk", l.size.bulkBytes, 1)
	if err := errors.Join(err, held.release()); err != nil {
		return 0, 0, err
	}
	if held.Failed > 0 {
		return 0, 0, fmt.Errorf("%s: %d of %d idle tunnels failed", p.name, held.Failed, l.size.beside)
	}
	return alone.Seconds / beside.Seconds, beside.proxy / alone.proxy, nil
}
