//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// runPlots measures how costs grow, and draws each as an SVG.
func runPlots(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench plots", flag.ContinueOnError)
	flags.SetOutput(stderr)
	to := flags.String("o", "docs/plots", "directory of the SVGs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	l, err := newLab(ctx, short, quickPeers, "", stderr)
	if err != nil {
		return err
	}
	return errors.Join(drawAll(l, *to, stderr), l.close())
}

// drawAll measures and draws every chart.
func drawAll(l *lab, dir string, stderr io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, chart := range []struct {
		name string
		draw func(*lab) (plot, error)
	}{
		{"memory-by-tunnels", memoryByTunnels},
		{"revocation-by-flows", revocationByFlows},
		{"direct-revocation-by-flows", directRevocationByFlows},
		{"swap-by-targets", swapByTargets},
		{"memory-by-targets", memoryByTargets},
		{"memory-by-names", memoryByNames},
		{"memory-by-agents", memoryByAgents},
	} {
		p, err := chart.draw(l)
		if err != nil {
			return fmt.Errorf("%s: %w", chart.name, err)
		}
		path := filepath.Join(dir, chart.name+".svg")
		if err := os.WriteFile(path, []byte(p.svg()), 0o644); err != nil {
			return err
		}
		fmt.Fprintln(stderr, path)
	}
	return nil
}

// steps are the numbers of tunnels that a chart has points at.
var steps = []int{0, 1000, 2000, 3000, 4000, 5000}

// memoryByTunnels is the resident memory with so many idle tunnels.
func memoryByTunnels(l *lab) (plot, error) {
	p := plot{title: "Memory by idle tunnels", x: "idle tunnels", y: "RSS, MB"}
	for _, peer := range l.peers {
		if peer.name == direct {
			continue
		}
		of := line{name: peer.name}
		for _, n := range steps {
			mb, err := memoryWith(l, peer, n)
			if err != nil {
				return p, err
			}
			of.points = append(of.points, [2]float64{float64(n), mb})
		}
		p.lines = append(p.lines, of)
	}
	return p, nil
}

func memoryWith(l *lab, p *peer, n int) (float64, error) {
	if err := p.restart(l); err != nil {
		return 0, err
	}
	if n == 0 {
		u, err := p.process.usage()
		return u.rss / 1e6, err
	}
	held, err := l.hold(p, n)
	if err != nil {
		return 0, err
	}
	u, err := p.process.usage()
	return u.rss / 1e6, errors.Join(err, held.release())
}

// revocationByFlows is how long a swap takes that forbids so many open flows.
func revocationByFlows(l *lab) (plot, error) {
	p := plot{title: "Revoking every proxied flow", x: "open flows", y: "ms until nothing more passes"}
	engine := l.named(ours)
	of := line{name: ours, points: [][2]float64{{0, 0}}}
	for _, n := range steps[1:] {
		if err := engine.restart(l); err != nil {
			return p, err
		}
		held, err := l.hold(engine, n)
		if err != nil {
			return p, err
		}
		took, err := engine.swap(l.ctx, int(held.Units))
		if err := errors.Join(err, held.release()); err != nil {
			return p, err
		}
		of.points = append(of.points, [2]float64{float64(n), took})
	}
	p.lines = []line{of}
	return p, nil
}

// swapByTargets is how long the kernel takes to enforce another policy.
func swapByTargets(l *lab) (plot, error) {
	p := plot{title: "Swapping every address target", x: "targets", y: "ms until the kernel enforces it"}
	of := line{name: ours, points: [][2]float64{{0, 0}}}
	for _, n := range []int{1000, 10000, 25000, 50000, 75000, 100000} {
		there, back, err := timeSwaps(l, inNet(10, n), inNet(11, n))
		if err != nil {
			return p, err
		}
		of.points = append(of.points, [2]float64{float64(n), figureOfValues(append(there, back...)).median})
	}
	p.lines = []line{of}
	return p, nil
}
