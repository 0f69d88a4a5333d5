//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
)

// memoryLimits are in MB: what is resident at rest (P3) and by how much 10,000 names
// in the cache may add (P5). Of flows P3 has the limit; of targets there is none.
const (
	restLimit  = 15
	namesLimit = 20
	manyOf     = 10000
)

// memory is what our process holds at rest, and what flows, targets and names add.
func memory(l *lab) (section, error) {
	s := section{columns: []string{"", "RSS MB", "added to rest", "each"}}
	var rest, flows, targets, names []float64
	for range min(3, l.size.rounds) {
		for _, m := range []struct {
			into    *[]float64
			measure func() (float64, error)
		}{
			{&rest, func() (float64, error) { return l.engineMemory(0, 0) }},
			{&targets, func() (float64, error) { return l.engineMemory(manyOf, 0) }},
			{&names, func() (float64, error) { return l.engineMemory(0, manyOf) }},
			{&flows, func() (float64, error) {
				return memoryWith(l, l.named(ours), l.size.idle)
			}},
		} {
			mb, err := m.measure()
			if err != nil {
				return s, err
			}
			*m.into = append(*m.into, mb)
		}
	}
	base := figureOfValues(rest)
	add := func(what string, values []float64, n int) float64 {
		f := figureOfValues(values)
		more := f.median - base.median
		s.rows = append(s.rows, []string{what, f.format("%.1f"), fmt.Sprintf("%.1f", more), fmt.Sprintf("%.2f KB", more*1e3/float64(n))})
		return more
	}
	s.rows = append(s.rows, []string{"at rest", base.format("%.1f"), "", ""})
	add(fmt.Sprintf("%d flows", l.size.idle), flows, l.size.idle)
	add(fmt.Sprintf("%d targets", manyOf), targets, manyOf)
	more := add(fmt.Sprintf("%d names in the cache", manyOf), names, manyOf)
	s.verdicts = append(s.verdicts,
		atMost("RSS MB at rest", base.median, restLimit),
		atMost(fmt.Sprintf("RSS MB that %d names add", manyOf), more, namesLimit))
	return s, l.named(ours).restart(l)
}

// newEngine is a peer that is our engine with resolver and proxy, on ports of its own.
func (l *lab) newEngine(number, targets int) (*peer, error) {
	p := &peer{name: fmt.Sprintf("engine-%d", number), version: "this tree", port: 10200 + number}
	p.address = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(p.port)).String()
	p.command = []string{
		l.program, "engine", "-listen", "127.0.0.1:{port}", "-dns", "127.0.0.1:{port}",
		"-upstream", firstOrigin, "-resolve", firstOrigin, "-targets", fmt.Sprint(targets),
	}
	return p, p.prepare(l.dir)
}

// engineMemory is the RSS in MB of an engine with so many targets that was asked for
// so many names.
func (l *lab) engineMemory(targets, names int) (float64, error) {
	p, err := l.newEngine(0, targets)
	if err != nil {
		return 0, err
	}
	err = p.startResolver(l)
	if err == nil && names > 0 {
		_, err = l.load(p, askMiss, names, 16)
	}
	if err != nil {
		return 0, errors.Join(err, p.process.stop())
	}
	u, err := p.process.usage()
	return u.rss / 1e6, errors.Join(err, p.process.stop())
}
