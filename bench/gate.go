//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	// gateTries is how often a target is measured at most, until each of its gates has
	// been met once: what is really slower is slower every time.
	gateTries = 5
	// quietTries are how many of them must have been on a quiet machine for a miss to count.
	quietTries = 3
	// quickLimit is what a quick run may take. What was not measured by then is not judged.
	quickLimit = 10 * time.Minute
	// triesLimit is from when on nothing is tried again.
	triesLimit = quickLimit / 2
)

// judge decides whether a quick run fails. It is to fail where the product costs
// more than it may, and never for what others do to the machine.
type judge struct {
	log io.Writer
	// listen runs a measurement and tells the noise meanwhile (listen).
	listen func(ctx context.Context, f func() error) (noise, error)
	// open builds the lab anew, after an error.
	open  func() (*lab, error)
	deaf  bool // every machine is quiet
	lab   *lab
	began time.Time

	judged int
	// failures fail the run. told is what is to be said at its end, and fails nothing.
	failures, told []string
}

// measure measures a target until each of its gates has been met once. The section is
// the last measurement's; none is an empty one.
func (j *judge) measure(ctx context.Context, t target) (section, error) {
	var last section
	var open []verdict // the gates that no try has met
	var failed error   // of the last try, while none has succeeded
	measured, quiet, tries := false, 0, 0
	for tries < gateTries && ctx.Err() == nil && (tries == 0 || time.Since(j.began) < triesLimit) {
		tries++
		s, n, err := j.try(ctx, t)
		if errors.Is(ctx.Err(), context.Canceled) {
			return last, ctx.Err()
		}
		if j.deaf || !n.loud() {
			quiet++
		}
		if err != nil {
			if !measured {
				failed = errors.Join(err, ctx.Err())
			}
			fmt.Fprintf(j.log, "%s, try %d of %d: %v; %v\n", t.id, tries, gateTries, err, n)
			continue
		}
		if last = s; !measured {
			open = s.gatesMissed()
		} else {
			open = both(open, s.gatesMissed())
		}
		measured = true
		if len(open) == 0 {
			break
		}
		fmt.Fprintf(j.log, "%s, try %d of %d: %s; %v\n", t.id, tries, gateTries, lines(open), n)
	}
	j.conclude(t, last, open, measured, failed, tries, quiet)
	return last, nil
}

// try measures once, in a new lab where the one before has failed.
func (j *judge) try(ctx context.Context, t target) (s section, n noise, err error) {
	n, err = j.listen(ctx, func() (err error) {
		if j.lab == nil {
			if j.lab, err = j.open(); err != nil {
				return fmt.Errorf("build the lab: %w", err)
			}
		}
		s, err = t.measure(j.lab)
		return err
	})
	if err != nil {
		err = errors.Join(err, j.lab.close())
		j.lab = nil
	}
	return s, n, err
}

// conclude notes what the tries of a target come to.
func (j *judge) conclude(t target, last section, open []verdict, measured bool, failed error, tries, quiet int) {
	miss := func(what string) {
		if quiet >= quietTries {
			j.failures = append(j.failures, fmt.Sprintf("%s: %s (%d tries)", t.id, what, tries))
			return
		}
		j.told = append(j.told, fmt.Sprintf("not judged, since only %d of %d tries were on a quiet machine: %s: %s", quiet, tries, t.id, what))
	}
	switch {
	case tries == 0:
		j.told = append(j.told, fmt.Sprintf("not measured, for want of time: %s", t.id))
	case !measured && errors.Is(failed, context.DeadlineExceeded):
		j.told = append(j.told, fmt.Sprintf("not measured to its end, for want of time: %s", t.id))
	case !measured:
		miss(failed.Error())
	}
	for _, v := range open {
		miss(v.String())
	}
	for _, v := range last.verdicts {
		switch {
		case v.weight == gating && v.measured():
			j.judged++
		case v.weight == gating:
			j.told = append(j.told, fmt.Sprintf("%s: %s", t.id, v))
		case v.weight == relative && v.measured() && v.far():
			j.told = append(j.told, fmt.Sprintf("%s: %s; this fails nothing, since it moves with what else the machine does", t.id, v))
		}
	}
}

// verdict is the end of a run: what is to be told, and an error where a gate was missed.
func (j *judge) verdict() error {
	for _, line := range j.told {
		fmt.Fprintln(j.log, "TOLD:", line)
	}
	if len(j.failures) > 0 {
		return fmt.Errorf("missed by more than %.0f %% in every try:\n%s", 100*(slack-1), strings.Join(j.failures, "\n"))
	}
	if j.judged == 0 {
		fmt.Fprintln(j.log, "TOLD: no gate at all was judged: this run says nothing")
		return nil
	}
	fmt.Fprintf(j.log, "%d gates judged, none failed\n", j.judged)
	return nil
}

// gatesMissed are the gates that are missed beyond the slack.
func (s section) gatesMissed() []verdict {
	var missed []verdict
	for _, v := range s.verdicts {
		if v.weight == gating && v.measured() && v.far() {
			missed = append(missed, v)
		}
	}
	return missed
}

// both are the verdicts of now that are among those of before.
func both(before, now []verdict) []verdict {
	var same []verdict
	for _, v := range now {
		for _, w := range before {
			if v.what == w.what {
				same = append(same, v)
			}
		}
	}
	return same
}

func lines(verdicts []verdict) string {
	all := make([]string, len(verdicts))
	for i, v := range verdicts {
		all[i] = v.String()
	}
	return strings.Join(all, "; ")
}
