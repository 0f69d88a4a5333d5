package probe

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Case is one way of carrying a row of the catalogue out.
type Case struct {
	// ID is the row's; a row may have several cases.
	ID string
	// Attack says what is tried, and Expected what is seen where it is stopped.
	Attack, Expected string
	// Disturbs marks what could disturb the sandbox: left out of the safe subset.
	Disturbs bool

	try func(*attempt) sight
}

// sight is what was seen of a case, and what follows from it.
type sight struct {
	verdict   Verdict
	seen, why string
}

func held(format string, args ...any) sight { return sight{Held, fmt.Sprintf(format, args...), ""} }
func leak(format string, args ...any) sight { return sight{Leak, fmt.Sprintf(format, args...), ""} }

// unproven says what was seen, and why that proves nothing.
func unproven(seen, why string) sight { return sight{NotProven, seen, why} }

// attempt is one case under way.
type attempt struct {
	ctx context.Context
	Aim
	surroundings
	marker string
	mark   uint32
	child  func(args ...string) []string
}

// deadline is when the case's time is up.
func (a *attempt) deadline() time.Time {
	at, ok := a.ctx.Deadline()
	if !ok {
		at = time.Now().Add(caseTime)
	}
	return at
}

// within is the deadline, or earlier.
func (a *attempt) within(d time.Duration) time.Time {
	if at := time.Now().Add(d); at.Before(a.deadline()) {
		return at
	}
	return a.deadline()
}

// Cases gives every case, in the catalogue's order.
func Cases() []Case {
	all := slices.Concat(plainCases(), rawCases(), frameCases(), namespaceCases(), socketCases(),
		dnsCases(), httpCases(), tlsCases(), hostCases(), rootCases())
	slices.SortStableFunc(all, func(a, b Case) int {
		switch {
		case a.ID < b.ID:
			return -1
		case a.ID > b.ID:
			return 1
		}
		return 0
	})
	return all
}

func runCases(ctx context.Context, o Options, cases []Case) (Report, error) {
	around, err := look()
	if err != nil {
		return Report{}, err
	}
	report := Report{Cases: []Finding{}}
	for i, c := range cases {
		if err := ctx.Err(); err != nil {
			return report, err
		}
		marker := fmt.Sprintf("%s-%03d-", o.Marker, i)
		limited, cancel := context.WithTimeout(ctx, caseTime)
		a := &attempt{ctx: limited, Aim: o.Aim, surroundings: around, marker: marker, mark: o.SocketMark, child: o.Child}
		s := c.try(a)
		cancel()
		report.add(Finding{
			ID: c.ID, Attack: c.Attack, Expected: c.Expected,
			Seen: s.seen, Verdict: s.verdict, Why: s.why, Marker: marker,
		})
	}
	return report, nil
}
