//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// tried is one row of the table at the end.
type tried struct {
	phase, what, result string
	ok                  bool
}

// play runs the script and prints its table. ok says whether all went as expected.
func (s *stage) play(ctx context.Context) (ok bool, err error) {
	var rows []tried
	for i, c := range script() {
		s.say("\n── %s", c.title)
		if i > 0 {
			row, err := s.enter(ctx, c.phase)
			if err != nil {
				return false, err
			}
			if i == 1 { // the download of the first phase ends here
				rows = append(rows, row)
			}
		}
		for _, a := range c.acts {
			o, err := s.try(a.step)
			if err != nil {
				return false, err
			}
			s.say("  agent  %s → %s (%d ms)", a.what, o.Result, o.TookMS)
			s.showLog()
			rows = append(rows, tried{c.phase, a.what, o.Result, a.holds(o)})
		}
		if c.phase == "run" {
			if err := s.show(ctx, "notice", sandboxName); err != nil {
				return false, err
			}
		}
	}
	s.say("\n── what the agent was allowed to reach would have needed this allowlist")
	if err := s.show(ctx, "learn", sandboxName); err != nil {
		return false, err
	}
	return s.table(rows), nil
}

// show runs a command whose output is there to be read.
func (s *stage) show(ctx context.Context, args ...string) error {
	out, err := s.orchestrate(ctx, args...)
	if err == nil {
		s.say("%s", out)
	}
	return err
}

// enter swaps to a phase and sees what becomes of the running download: once the
// command has returned not one more byte may come.
func (s *stage) enter(ctx context.Context, phase string) (tried, error) {
	before, err := s.try(step{Do: "downloaded"})
	if err != nil {
		return tried{}, err
	}
	if err := s.show(ctx, "phase", sandboxName, phase); err != nil {
		return tried{}, err
	}
	s.showLog() // and in that time the agent reads what its socket held at the swap
	atSwap, err := s.try(step{Do: "downloaded"})
	if err != nil {
		return tried{}, err
	}
	<-time.After(200 * time.Millisecond) // in which a leak would show
	later, err := s.try(step{Do: "downloaded"})
	if err != nil {
		return tried{}, err
	}
	row := tried{
		phase: phase, what: "go on with the download that set-up began",
		result: fmt.Sprintf("%s after %.1f MB, then %d bytes", later.Result, float64(later.Bytes)/1e6, later.Bytes-atSwap.Bytes),
		ok:     before.Bytes > 0 && later.Result == "reset" && later.Bytes == atSwap.Bytes,
	}
	if before.Result == "" {
		s.say("  agent  %s → %s", row.what, row.result)
	}
	return row, nil
}

// table prints what was tried and what happened.
func (s *stage) table(rows []tried) (ok bool) {
	ok = true
	s.say("\n── what was tried, and what happened")
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tPHASE\tTRIED\tHAPPENED")
	for _, r := range rows {
		mark := "ok"
		if !r.ok {
			mark, ok = "NOT AS EXPECTED", false
		}
		result, _, _ := strings.Cut(r.result, "\n")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", mark, r.phase, r.what, result)
	}
	if err := table.Flush(); err != nil {
		return false
	}
	if ok {
		s.say("\nAll as expected.")
	} else {
		s.say("\nNot all was as expected.")
	}
	return ok
}
