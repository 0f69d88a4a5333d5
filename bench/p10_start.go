//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// starts is P10: exeat run -- true takes at most 50 ms more than true.
func starts(l *lab) (section, error) {
	s := section{columns: []string{"command", "ms"}}
	program, err := l.build("exeat")
	if err != nil {
		s.notes = append(s.notes, "not measured: "+err.Error())
		return s, nil
	}
	commands := [][]string{{"true"}, {program, "run", "--", "true"}}
	times := make([][]float64, len(commands))
	for range 3 * l.size.rounds {
		for i, c := range commands {
			cmd := exec.Command(c[0], c[1:]...)
			cmd.Dir = l.dir
			start := time.Now()
			if out, err := cmd.CombinedOutput(); err != nil {
				return s, fmt.Errorf("%v: %w: %s", c, err, out)
			}
			times[i] = append(times[i], float64(time.Since(start).Nanoseconds())/1e6)
		}
	}
	plain, ours := figureOfValues(times[0]), figureOfValues(times[1])
	s.rows = append(s.rows, []string{"true", plain.format("%.1f")}, []string{"exeat run -- true", ours.format("%.1f")})
	s.verdicts = append(s.verdicts, atMost("ms added by exeat run", ours.median-plain.median, 50))
	return s, nil
}

// build builds a program of the product, as make build does.
func (l *lab) build(name string) (string, error) {
	program := filepath.Join(l.dir, name)
	build := exec.Command("go", "build", "-trimpath", "-o", program, "github.com/exeat/exeat/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s cannot be built here: %w: %s", name, err, out)
	}
	return program, nil
}
