//go:build linux

package main

import (
	"errors"
	"fmt"
)

// questions is P5: a hit and a denial cost at most 1.2 × unbound's processor time
// (stretch 1.0), a miss at most 40 µs (stretch 30), the p99 of a hit is at most 120 µs.
func questions(l *lab) (section, error) {
	s := section{columns: []string{"resolver", "question", "CPU µs a query", "p50 µs, one at a time", "p99 µs, one at a time"}}
	peers, err := resolvers(l)
	if err != nil {
		return s, err
	}
	peers, err = l.startAll(peers, func(p *peer) error { return p.startResolver(l) })
	if err != nil {
		return s, errors.Join(err, stopAll(peers))
	}
	for _, p := range peers {
		s.notes = append(s.notes, p.name+": "+p.version)
	}
	cost := map[string]figure{} // by resolver and kind
	// Names never asked before come last: for ten seconds they fill the log's memory of what repeats.
	for _, kind := range []string{askHit, askDenied, askMiss} {
		n := l.size.questions
		if kind == askMiss {
			n /= 4
		}
		many, err := l.rounds(peers, func(p *peer) (sample, error) { return l.load(p, kind, n, 32) })
		if err != nil {
			return s, errors.Join(err, stopAll(peers))
		}
		single, err := l.rounds(peers, func(p *peer) (sample, error) { return l.load(p, kind, n/10, 1) })
		if err != nil {
			return s, errors.Join(err, stopAll(peers))
		}
		for _, p := range peers {
			cpu, p99 := many.of(p.name, sample.proxyEach), single.of(p.name, sample.p99)
			cost[p.name+kind] = cpu
			s.rows = append(s.rows, []string{
				p.name, kind, cpu.format("%.1f"),
				single.of(p.name, sample.p50).format("%.0f"), p99.format("%.0f"),
			})
			if p.name == ours && kind == askHit {
				s.verdicts = append(s.verdicts, atMost("p99 µs of a hit", p99.median, 120))
			}
		}
	}
	overUnbound := func(kind string) float64 { return cost[ours+kind].over(cost["unbound"+kind]) }
	s.verdicts = append(s.verdicts,
		atMost("hit, CPU a query ÷ unbound's", overUnbound(askHit), 1.2).gates(),
		atMost("denied, CPU a query ÷ unbound's", overUnbound(askDenied), 1.2).gates(),
		atMost("miss, CPU a query ÷ unbound's", overUnbound(askMiss), 1.2).gates(),
		atMost("miss, CPU µs a query", cost[ours+askMiss].median, 40))
	return s, stopAll(peers)
}

// startResolver starts a resolver and waits until it answers.
func (p *peer) startResolver(l *lab) error {
	return p.startAs(l, func() error {
		_, err := l.load(p, askHit, 1, 1)
		return err
	})
}

func stopAll(peers []*peer) error {
	var err error
	for _, p := range peers {
		err = errors.Join(err, p.process.stop())
	}
	if err != nil {
		return fmt.Errorf("stop the resolvers: %w", err)
	}
	return nil
}
