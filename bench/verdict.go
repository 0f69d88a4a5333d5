//go:build linux

package main

import (
	"fmt"
	"math"
)

// slack is how far a ratio may be missed in a quick run.
const slack = 1.15

// verdict compares a figure with its limit.
type verdict struct {
	what string
	// got is not a number where what it takes was not measured, as a peer that is not
	// installed.
	got, limit float64
	atLeast    bool
	weight     weight
}

// weight is what it means in a quick run that a limit is missed by more than slack.
type weight int

const (
	// absolute figures are this machine's, and say nothing on another.
	absolute weight = iota
	// relative are rates or times of one run in relation. What else the machine does
	// weighs on them, and unevenly: a miss is told and fails nothing.
	relative
	// gating is what a unit costs, in processor time in relation to another of the same
	// run, in memory or in descriptors. That is the product's doing: a miss fails the run.
	gating
)

// atMost is the verdict on a figure that has an upper limit.
func atMost(what string, got, limit float64) verdict {
	return verdict{what: what, got: got, limit: limit, weight: absolute}
}

// atLeast is the verdict on a figure that has a lower limit.
func atLeast(what string, got, limit float64) verdict {
	return verdict{what: what, got: got, limit: limit, atLeast: true, weight: absolute}
}

// tells makes v one that is told when it is far off.
func (v verdict) tells() verdict {
	v.weight = relative
	return v
}

// gates makes v one that fails a quick run when it is far off.
func (v verdict) gates() verdict {
	v.weight = gating
	return v
}

func (v verdict) measured() bool { return !math.IsNaN(v.got) }

func (v verdict) met() bool {
	if v.atLeast {
		return v.got >= v.limit
	}
	return v.got <= v.limit
}

// far says that the limit is missed by more than the slack.
func (v verdict) far() bool {
	if v.atLeast {
		return v.got*slack < v.limit
	}
	return v.got > v.limit*slack
}

func (v verdict) String() string {
	if !v.measured() {
		return "not measured: " + v.what
	}
	word, sign := "**missed**", "≤"
	if v.met() {
		word = "met"
	}
	if v.atLeast {
		sign = "≥"
	}
	text := fmt.Sprintf("%s: %s: %.3g (%s %.3g)", word, v.what, v.got, sign, v.limit)
	if !v.met() && v.limit != 0 {
		text += fmt.Sprintf(", by %.0f %%", 100*math.Abs(v.got-v.limit)/v.limit)
	}
	return text
}
