package probe

import (
	"context"
	"fmt"
	"net/netip"
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
	// Own is what the case turns on that is the sandbox's own, besides its network
	// namespace; empty is nothing.
	Own Own

	try func(*attempt) sight
}

// Own is what a sandbox does not share with who stands beside it.
type Own string

// What cases turn on.
const (
	OwnCapabilities Own = "capabilities"
	OwnProcesses    Own = "processes"
	OwnFiles        Own = "files"
	OwnFilter       Own = "filter of system calls"
)

// of marks cases as turning on something that is the sandbox's own.
func of(own Own, cases ...Case) []Case {
	for i := range cases {
		cases[i].Own = own
	}
	return cases
}

// beside is the sight of a case that is not tried beside the sandbox.
func (c Case) beside() sight {
	return unproven("not tried", "it turns on the sandbox's own "+string(c.Own)+", which a probe inside has and one beside it has not")
}

// sight is what was seen of a case, and what follows from it.
type sight struct {
	verdict   Verdict
	seen, why string
	// quiet marks what is held where no link has sent anything meanwhile.
	quiet bool
}

func held(format string, args ...any) sight {
	return sight{verdict: Held, seen: fmt.Sprintf(format, args...)}
}

func leak(format string, args ...any) sight {
	return sight{verdict: Leak, seen: fmt.Sprintf(format, args...)}
}

// unproven says what was seen, and why that proves nothing.
func unproven(seen, why string) sight { return sight{verdict: NotProven, seen: seen, why: why} }

// unlessQuiet is unproven for what sent a packet, if at all: where no link has
// sent any meanwhile, it was stopped before that.
func unlessQuiet(seen, why string) sight {
	return sight{verdict: NotProven, seen: seen, why: why, quiet: true}
}

// attempt is one case under way.
type attempt struct {
	ctx context.Context
	Aim
	surroundings
	marker string
	mark   uint32
	child  func(args ...string) []string
	beside *Beside
	// to is where the sockets that are opened next send to.
	to netip.Addr
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

// quietTries are how often a case is tried while others' packets could be ours,
// where one try takes less than quickTry.
const (
	quietTries = 3
	quickTry   = 100 * time.Millisecond
)

// tryUntilQuiet tries the case, and again where only the links' counters can tell
// that nothing left, and others' traffic was counted.
func (a *attempt) tryUntilQuiet(ctx context.Context, c Case) sight {
	for n := 1; ; n++ {
		limited, cancel := context.WithTimeout(ctx, caseTime)
		a.ctx = limited
		before, began := packetsSent(), time.Now()
		s := c.try(a)
		slow := time.Since(began) > quickTry
		if s.quiet {
			a.pause(20 * time.Millisecond) // for what is on its way to the link
		}
		cancel()
		if !s.quiet {
			return s
		}
		if packetsSent() == before {
			return held("%s; no link has sent anything", s.seen)
		}
		if n == quietTries || slow || ctx.Err() != nil {
			return s
		}
	}
}

// pause waits, or until the case's time is up.
func (a *attempt) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.ctx.Done():
	}
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
		a := &attempt{Aim: o.Aim, surroundings: around, marker: marker, mark: o.SocketMark, child: o.Child, beside: o.Beside}
		var s sight
		if o.Beside != nil && c.Own != "" {
			s = c.beside()
		} else {
			s = a.tryUntilQuiet(ctx, c)
		}
		report.add(Finding{
			ID: c.ID, Attack: c.Attack, Expected: c.Expected,
			Seen: s.seen, Verdict: s.verdict, Why: s.why, Marker: marker,
		})
	}
	return report, nil
}
