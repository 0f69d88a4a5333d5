//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// gateTries is how often a target whose ratio was missed is measured before that
	// counts: noise seldom strikes three times.
	gateTries = 3
	// busyFrom is the share of the processors from which on others at work make what
	// is measured say nothing.
	busyFrom = .15
	// quickLimit is what a quick run may take.
	quickLimit = 10 * time.Minute
)

// gate measures what may fail a run.
type gate struct {
	log    io.Writer
	others func() (float64, error) // othersAtWork
	// until is when nothing is tried again any more, so that the run ends in time.
	until time.Time
	// busy says that others have used the machine at some time.
	busy bool
}

func newGate(log io.Writer) *gate {
	return &gate{log: log, others: othersAtWork, until: time.Now().Add(quickLimit / 2)}
}

// look gives the share of the machine that others use now.
func (g *gate) look() (float64, error) {
	share, err := g.others()
	g.busy = g.busy || share >= busyFrom
	return share, err
}

// measure measures a target until its gates are met, gateTries times at most, and
// gives the last measurement. judged is false where one was missed while others used
// the machine: that says nothing, and is not tried again either.
func (g *gate) measure(l *lab, t target) (s section, judged bool, err error) {
	for try := 1; ; try++ {
		before, err := g.look()
		if err != nil {
			return s, false, err
		}
		if s, err = t.measure(l); err != nil {
			return s, false, err
		}
		missed := s.gatesMissed()
		if len(missed) == 0 {
			return s, true, nil
		}
		after, err := g.look()
		if err != nil {
			return s, false, err
		}
		others := max(before, after)
		for _, v := range missed {
			fmt.Fprintf(g.log, "%s, try %d of %d, others use %.0f %% of the machine: %s\n", t.id, try, gateTries, 100*others, v)
		}
		if others >= busyFrom {
			return s, false, nil
		}
		if try == gateTries || time.Now().After(g.until) {
			return s, true, nil
		}
	}
}

// gatesMissed are the ratios that are missed beyond the slack.
func (s section) gatesMissed() []verdict {
	var missed []verdict
	for _, v := range s.verdicts {
		if v.missed() {
			missed = append(missed, v)
		}
	}
	return missed
}

// othersAtWork is the share of the processors that was not idle for a second in
// which the lab rested.
func othersAtWork() (float64, error) {
	busy, all, err := processorTime()
	if err != nil {
		return 0, err
	}
	if err := pause(context.Background(), time.Second); err != nil {
		return 0, err
	}
	busyThen, allThen, err := processorTime()
	if err != nil || allThen == all {
		return 0, err
	}
	return float64(busyThen-busy) / float64(allThen-all), nil
}

// processorTime is the first line of /proc/stat (proc(5)): the fourth and fifth
// figures are idle and waiting for input, the last two are counted already.
func processorTime() (busy, all uint64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, errors.New("/proc/stat begins otherwise than with the processors' time")
	}
	for i, field := range fields[1:9] {
		ticks, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		all += ticks
		if i != 3 && i != 4 {
			busy += ticks
		}
	}
	return busy, all, nil
}
