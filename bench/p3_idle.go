//go:build linux

package main

import (
	"errors"
	"fmt"
)

// idleTunnels is P3: 5,000 idle tunnels, none fails, two descriptors and at most
// 3 KB of resident memory each (stretch 1), from a base of at most 15 MB.
func idleTunnels(l *lab) (section, error) {
	s := section{columns: []string{"peer", "RSS MB at rest", fmt.Sprintf("RSS MB with %d", l.size.idle), "KB a tunnel", "descriptors a tunnel", "failed"}}
	for _, p := range l.peers {
		if p.name == direct {
			continue
		}
		if err := p.restart(l); err != nil {
			return s, err
		}
		before, err := p.process.usage()
		if err != nil {
			return s, err
		}
		held, err := l.hold(p, l.size.idle)
		if err != nil {
			return s, err
		}
		during, err := p.process.usage()
		if err := errors.Join(err, held.release()); err != nil {
			return s, err
		}
		open := max(held.Units, 1)
		each, fds := (during.rss-before.rss)/open/1e3, (during.descriptors-before.descriptors)/open
		s.rows = append(s.rows, []string{
			p.name, fmt.Sprintf("%.1f", before.rss/1e6), fmt.Sprintf("%.1f", during.rss/1e6),
			fmt.Sprintf("%.2f", each), fmt.Sprintf("%.2f", fds), fmt.Sprint(held.Failed),
		})
		if p.name == ours {
			s.verdicts = append(s.verdicts,
				atMost("tunnels that failed", float64(held.Failed), 0).gates(),
				atMost("descriptors a tunnel", fds, 2.01).gates(),
				atMost("KB a tunnel", each, 3).gates(),
				atMost("KB a tunnel, stretch", each, 1),
				atMost("RSS MB at rest", before.rss/1e6, 15).gates())
		}
	}
	return s, nil
}

// restart gives a peer as it is when it has just been started.
func (p *peer) restart(l *lab) error {
	if err := p.process.stop(); err != nil {
		return err
	}
	return p.start(l)
}
