//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// revocation is P8's proxied half: a swap that forbids 5,000 open flows takes at
// most 50 ms until not one more byte of them is sent.
func revocation(l *lab) (section, error) {
	p := l.named(ours)
	s := section{columns: []string{"flows", "ms until nothing more passes", "proxy CPU ms until all are closed"}}
	if p.command[0] != l.program {
		return s, nil // the product is swapped over its own socket: another bench
	}
	var times, costs []float64
	for range l.size.rounds {
		if err := p.restart(l); err != nil {
			return s, err
		}
		held, err := l.hold(p, l.size.idle)
		if err != nil {
			return s, err
		}
		before, err := p.process.usage()
		if err != nil {
			return s, err
		}
		took, err := p.swap(l.ctx, int(held.Units))
		if err := errors.Join(err, held.release()); err != nil {
			return s, err
		}
		after, err := p.process.usage()
		if err != nil {
			return s, err
		}
		times, costs = append(times, took), append(costs, (after.cpu-before.cpu)*1e3)
	}
	if err := p.restart(l); err != nil {
		return s, err
	}
	took := figureOfValues(times)
	s.rows = append(s.rows, []string{fmt.Sprint(l.size.idle), took.format("%.1f"), figureOfValues(costs).format("%.0f")})
	s.verdicts = append(s.verdicts, atMost(fmt.Sprintf("ms to revoke %d proxied flows", l.size.idle), took.median, 50))
	return s, nil
}

// swap has the bench's engine forbid everything and says how many ms it took.
func (p *peer) swap(ctx context.Context, flows int) (float64, error) {
	if err := p.process.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return 0, err
	}
	for range 500 {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
		var r swapped
		if err := json.Unmarshal(p.process.said(), &r); err != nil {
			continue // it has not said it yet
		}
		if r.Revoked != flows {
			return 0, fmt.Errorf("%d flows revoked of %d", r.Revoked, flows)
		}
		return r.TookUS / 1e3, nil
	}
	return 0, fmt.Errorf("no answer to the swap: %q", p.process.said())
}
