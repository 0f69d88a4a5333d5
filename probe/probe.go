package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/exeat/exeat/policy"
)

// ErrUnsupported is the answer of Run on systems without Linux namespaces.
var ErrUnsupported = errors.New("the probe needs Linux")

// Verdict is the outcome of one case. The zero value is none.
type Verdict string

// The verdicts. What could not be tried, or not be told, is NotProven.
const (
	Held      Verdict = "held"
	Leak      Verdict = "leak"
	NotProven Verdict = "not-proven"
)

// Finding is a case and what became of it.
type Finding struct {
	ID       string  `json:"id"`
	Attack   string  `json:"attack"`
	Expected string  `json:"expected"`
	Seen     string  `json:"seen"`
	Verdict  Verdict `json:"verdict"`
	// Why says why a case is not proven.
	Why string `json:"why,omitempty"`
	// Marker is in the payload of what was sent: a far side that counts it knows
	// more than can be seen from inside.
	Marker string `json:"marker,omitempty"`
}

// Report is what a run found.
type Report struct {
	Cases     []Finding `json:"cases"`
	Held      int       `json:"held"`
	Leaks     int       `json:"leaks"`
	NotProven int       `json:"not_proven"`
}

// add counts a finding.
func (r *Report) add(f Finding) {
	r.Cases = append(r.Cases, f)
	switch f.Verdict {
	case Held:
		r.Held++
	case Leak:
		r.Leaks++
	case NotProven:
		r.NotProven++
	}
}

// Replace gives the report with another run's findings of one row.
func (r Report) Replace(id string, row Report) Report {
	var out Report
	found := row.Cases
	for _, f := range r.Cases {
		if f.ID != id {
			out.add(f)
			continue
		}
		for _, f := range found {
			out.add(f)
		}
		found = nil
	}
	return out
}

// Doubt gives the report with its leaks as not proven, and why.
func (r Report) Doubt(why string) Report {
	var out Report
	for _, f := range r.Cases {
		if f.Verdict == Leak {
			f.Verdict, f.Why = NotProven, why
		}
		out.add(f)
	}
	return out
}

// Aim is where the attacks go. Nothing of it may be allowed by the policy, but
// for Through and AllowedName.
type Aim struct {
	// IPv4 and IPv6 are the addresses to reach; the default is of the
	// documentation ranges, where nobody is.
	IPv4, IPv6 netip.Addr
	// Name is a name to reach; the default ends in .invalid (RFC 2606).
	Name string
	// Through is an allowed IPv4 address, for what hides behind one; none where
	// invalid.
	Through netip.Addr
	// AllowedName is a name that the policy allows; none where empty.
	AllowedName string
}

// The addresses and the name that are attacked where nothing else is said.
var (
	deniedIPv4 = netip.AddrFrom4([4]byte{203, 0, 113, 66})
	deniedIPv6 = netip.MustParseAddr("2001:db8:a::66")
)

const deniedName = "probe.exeat.invalid"

// withDefaults fills in what was left out.
func (a Aim) withDefaults() Aim {
	if !a.IPv4.IsValid() {
		a.IPv4 = deniedIPv4
	}
	if !a.IPv6.IsValid() {
		a.IPv6 = deniedIPv6
	}
	if a.Name == "" {
		a.Name = deniedName
	}
	return a
}

// Options say what Run tries. The zero value is every case.
type Options struct {
	Aim Aim
	// IDs, where not empty, are the rows to try.
	IDs []string
	// Safe leaves out what could disturb the sandbox.
	Safe bool
	// Marker begins the marker of every case; it should differ from run to run.
	Marker string
	// SocketMark, where not zero, is put on every socket (SO_MARK): the mark by
	// which an engine's own probe is judged as the agent. It takes NET_ADMIN.
	SocketMark uint32
	// Child makes a command line, of a program that calls Child with these
	// arguments first thing, for what has to be tried by a process of its own. Nil
	// leaves such cases not proven.
	Child func(args ...string) []string
	// Beside, where not nil, says that Run is called beside the sandbox.
	Beside *Beside
}

// Beside is what a process knows that shares the sandbox's network namespace, and
// nothing else of it: what turns on the sandbox's own capabilities, processes, files
// or filter of system calls is then not proven.
type Beside struct {
	// Allowed says what the policy in force allows, which is no way round it.
	Allowed func(policy.Request) bool
	// Listeners are those of the enforcement.
	Listeners []netip.AddrPort
	// Claim is given each socket before it is used, and may bind it: so what comes of
	// it can be told from what the sandbox does.
	Claim func(Socket) error
}

// Socket is one of an attack, not yet bound.
type Socket struct {
	// FD is open until Claim has returned.
	FD   int
	IPv6 bool
	// Protocol is TCP, UDP, ICMP, or the number of another.
	Protocol policy.Protocol
	// To is whom it is to send to.
	To netip.Addr
}

// caseTime bounds a case, which otherwise waits for answers that do not come.
const caseTime = 5 * time.Second

// selected are the cases that o asks for.
func (o Options) selected() ([]Case, error) {
	for _, id := range o.IDs {
		if _, known := RowOf(id); !known {
			return nil, fmt.Errorf("no case %q: the catalogue goes from B01 to B79", id)
		}
	}
	return slices.DeleteFunc(Cases(), func(c Case) bool {
		return o.Safe && c.Disturbs || len(o.IDs) > 0 && !slices.Contains(o.IDs, c.ID)
	}), nil
}

// Run tries the cases one after the other, from the process that it is called in,
// and gives what it found. Everything that it opened is closed again and every
// file that it changed is as before. An ended context ends it with an error.
func Run(ctx context.Context, o Options) (Report, error) {
	cases, err := o.selected()
	if err != nil {
		return Report{}, err
	}
	if o.Marker == "" {
		o.Marker = "exeat-probe"
	}
	o.Aim = o.Aim.withDefaults()
	return runCases(ctx, o, cases)
}
