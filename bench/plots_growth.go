//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// directRevocationByFlows is what revoking a hundred silent flows takes among so many.
func directRevocationByFlows(_ *lab) (plot, error) {
	p := plot{title: fmt.Sprintf("Revoking %d silent direct flows", silentFlows), x: "open flows", y: "ms from the commit"}
	d, err := newDirectLab()
	if err != nil {
		return p, err
	}
	told, returned := line{name: "all are reset"}, line{name: "swap returns"}
	for _, n := range steps {
		if err := d.fill(max(0, n-silentFlows) - len(d.held)); err != nil {
			return p, errors.Join(err, d.close())
		}
		var late, end []float64
		for range short.rounds {
			c, err := d.cutSilent()
			if err != nil {
				return p, errors.Join(err, d.close())
			}
			late, end = append(late, c.late), append(end, c.returned-c.commit)
		}
		at := float64(max(n, silentFlows))
		told.points = append(told.points, [2]float64{at, figureOfValues(late).median})
		returned.points = append(returned.points, [2]float64{at, figureOfValues(end).median})
	}
	p.lines = []line{told, returned}
	return p, d.close()
}

// memoryByTargets is what an engine holds with so many targets.
func memoryByTargets(l *lab) (plot, error) {
	p := plot{title: "Memory by targets of the policy", x: "targets (names)", y: "RSS, MB"}
	of := line{name: ours}
	for _, n := range []int{0, 10000, 25000, 50000, 75000, 100000} {
		mb, err := l.engineMemory(n, 0)
		if err != nil {
			return p, err
		}
		of.points = append(of.points, [2]float64{float64(n), mb})
	}
	p.lines = []line{of}
	return p, nil
}

// memoryByNames is what resolvers hold that were asked for so many names; ours keeps
// 10,000.
func memoryByNames(l *lab) (plot, error) {
	p := plot{title: "Memory by names asked for", x: "names", y: "RSS, MB"}
	ours := line{name: ours}
	for _, n := range []int{0, 2500, 5000, 10000, 15000, 20000} {
		mb, err := l.engineMemory(0, n)
		if err != nil {
			return p, err
		}
		ours.points = append(ours.points, [2]float64{float64(n), mb})
	}
	theirs := line{name: "unbound"}
	for _, n := range []int{0, 5000, 10000, 20000} {
		mb, measured, err := l.unboundMemory(n)
		if err != nil {
			return p, err
		}
		if measured {
			theirs.points = append(theirs.points, [2]float64{float64(n), mb})
		}
	}
	p.lines = []line{ours}
	if len(theirs.points) > 0 {
		p.lines = append(p.lines, theirs)
	}
	return p, nil
}

func (l *lab) unboundMemory(names int) (mb float64, measured bool, err error) {
	all, err := resolvers(l)
	if err != nil {
		return 0, false, err
	}
	for _, p := range all {
		if p.name != "unbound" {
			continue
		}
		err := p.startResolver(l)
		if err == nil && names > 0 {
			_, err = l.load(p, askMiss, names, 16)
		}
		var u usage
		if err == nil {
			u, err = p.process.usage()
		}
		return u.rss / 1e6, true, errors.Join(err, p.process.stop())
	}
	return 0, false, nil
}

// memoryByAgents is what the engines of so many sandboxes hold together: one each,
// and pages that they share counted once.
func memoryByAgents(l *lab) (plot, error) {
	p := plot{title: "Memory by agents, one engine each", x: "agents", y: "PSS of all engines, MB"}
	of := line{name: ours, points: [][2]float64{{0, 0}}}
	var running []*peer
	for _, n := range []int{1, 2, 4, 8, 16, 24, 32} {
		for len(running) < n {
			engine, err := l.newEngine(len(running), 100)
			if err == nil {
				running = append(running, engine)
				err = engine.startResolver(l)
			}
			if err != nil {
				return p, errors.Join(err, stopAll(running))
			}
		}
		sum := 0.0
		for _, engine := range running {
			mb, err := shareOf(engine.process.cmd.Process.Pid)
			if err != nil {
				return p, errors.Join(err, stopAll(running))
			}
			sum += mb
		}
		of.points = append(of.points, [2]float64{float64(n), sum})
	}
	p.lines = []line{of}
	return p, stopAll(running)
}

// shareOf is a process's proportional set size (proc(5), smaps_rollup) in MB.
func shareOf(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for l := range bytes.Lines(text) {
		if fields := bytes.Fields(l); len(fields) == 3 && string(fields[0]) == "Pss:" {
			kb, err := strconv.ParseFloat(string(fields[1]), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/smaps_rollup has no Pss", pid)
}
