package firewall

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/policy"
)

// Firewall keeps the joined ruleset of one namespace in force. Its methods are
// safe for concurrent use.
type Firewall struct {
	kernel *Kernel
	now    func() time.Time

	mu sync.Mutex
	in JoinedInput
	// openings are the elements of the attributed sets by address, and until when
	// the kernel keeps them.
	openings map[netip.Addr]map[policy.Opening]time.Time
	// byName are the addresses that have openings because of a name.
	byName  map[string]map[netip.Addr]bool
	pruneAt int
	// seen are the names of addresses, kept where names are denied in an otherwise
	// open mode.
	seen seenNames
	// linkIndex is which link each name stood for when it got its chain.
	linkIndex map[string]int
	stale     bool // the kernel may hold something else than the fields say
}

// Swap is what a change of policy did.
type Swap struct {
	// Revoked are the direct flows that it ended.
	Revoked []RevokedFlow
	// Took is the time until the rules were in force, and Cut from then until the
	// last revoked flow was gone.
	Took, Cut time.Duration
}

// RevokedFlow is a flow that ran straight out until a policy forbade it.
type RevokedFlow struct {
	Local, Remote netip.AddrPort
	Protocol      policy.Protocol
}

// New takes a kernel over; nothing changes before Apply. A nil now is time.Now.
func New(k *Kernel, in JoinedInput, now func() time.Time) *Firewall {
	if now == nil {
		now = time.Now
	}
	return &Firewall{kernel: k, now: now, in: in, stale: true, linkIndex: map[string]int{}, seen: seenNames{}}
}

// Apply puts everything in force, also what somebody else removed.
func (f *Firewall) Apply() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	in := f.in
	in.Attributed = append(in.Attributed, f.attributedLocked()...)
	in.Shut = shutOf(in.Policy, f.seen, f.now())
	return f.applyLocked(in)
}

// applyLocked puts the input in force whole, and remembers it.
func (f *Firewall) applyLocked(in JoinedInput) error {
	if err := f.kernel.Apply(JoinedRuleset(in)); err != nil {
		return err
	}
	f.in, f.stale = in, false
	f.openings = map[netip.Addr]map[policy.Opening]time.Time{}
	f.byName = map[string]map[netip.Addr]bool{}
	now := f.now()
	for _, a := range in.Attributed {
		f.rememberLocked(a, now)
	}
	// What the resolver adds from now on is in openings alone.
	f.in.Attributed = nil
	return nil
}

func (f *Firewall) rememberLocked(a Attributed, now time.Time) {
	of := f.openings[a.Addr]
	if of == nil {
		of = map[policy.Opening]time.Time{}
		f.openings[a.Addr] = of
	}
	if until := now.Add(a.Timeout); until.After(of[a.Opening]) {
		of[a.Opening] = until
	}
	if a.Name != "" {
		if f.byName[a.Name] == nil {
			f.byName[a.Name] = map[netip.Addr]bool{}
		}
		f.byName[a.Name][a.Addr] = true
	}
}

// pruneLocked forgets what the kernel has forgotten, each time that the number of
// addresses has doubled.
func (f *Firewall) pruneLocked(now time.Time) {
	if len(f.openings)+len(f.seen) < f.pruneAt {
		return
	}
	for addr, names := range f.seen {
		maps.DeleteFunc(names, func(_ string, until time.Time) bool { return !until.After(now) })
		if len(names) == 0 {
			delete(f.seen, addr)
		}
	}
	for addr, of := range f.openings {
		maps.DeleteFunc(of, func(_ policy.Opening, until time.Time) bool { return !until.After(now) })
		if len(of) == 0 {
			delete(f.openings, addr)
		}
	}
	for name, addrs := range f.byName {
		maps.DeleteFunc(addrs, func(a netip.Addr, _ bool) bool { return f.openings[a] == nil })
		if len(addrs) == 0 {
			delete(f.byName, name)
		}
	}
	f.pruneAt = max(1024, 2*(len(f.openings)+len(f.seen)))
}

// Reconfigure changes what is not policy (links, inbound ports, lockdown, the
// engine's DNS) and applies it; attributed openings stay.
func (f *Firewall) Reconfigure(change func(in *JoinedInput)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	in := f.in
	in.Attributed = f.attributedLocked()
	change(&in)
	in.Shut = shutOf(in.Policy, f.seen, f.now())
	return f.applyLocked(in)
}

// attributedLocked are the openings that the kernel holds now.
func (f *Firewall) attributedLocked() []Attributed {
	var all []Attributed
	now := f.now()
	for name, addrs := range f.byName {
		for addr := range addrs {
			for o, until := range f.openings[addr] {
				if left := until.Sub(now); left > 0 {
					all = append(all, Attributed{Name: name, Addr: addr, Opening: o, Timeout: left})
				}
			}
		}
	}
	return all
}

// SwapPolicy puts the policy in force, with what it opens on attributed
// addresses, and ends the direct flows that it forbids. It changes everything
// or, on an error before Swap.Took is set, nothing. When it has returned no
// packet of a forbidden flow leaves or enters.
func (f *Firewall) SwapPolicy(c *policy.Compiled, attributed iter.Seq[attribution.Entry]) (Swap, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	start := f.now()
	patched, narrower, err := f.patchLocked(c, attributed)
	if err == nil && !patched {
		in := f.in
		in.Policy = c
		in.Attributed = openingsOf(c, attributed, start)
		seen := seenIn(c, attributed)
		in.Shut = shutOf(c, seen, start)
		if err = f.applyLocked(in); err == nil {
			f.seen = seen
		}
	}
	if err != nil {
		f.stale = true
		return Swap{}, err
	}
	enforced := f.now()
	swap := Swap{Took: enforced.Sub(start)}
	if patched && !narrower {
		return swap, nil // there is nothing that it could forbid
	}
	swap.Revoked, err = f.revokeLocked()
	swap.Cut = f.now().Sub(enforced)
	if err != nil {
		return swap, fmt.Errorf("end revoked flows: %w", err)
	}
	return swap, nil
}

// openingsOf are all openings that a policy has on attributed addresses.
func openingsOf(c *policy.Compiled, attributed iter.Seq[attribution.Entry], now time.Time) []Attributed {
	var all []Attributed
	if attributed == nil {
		return nil
	}
	byName := map[string][]policy.Opening{}
	for e := range attributed {
		openings, known := byName[e.Name]
		if !known {
			openings = c.Openings(e.Name)
			byName[e.Name] = openings
		}
		left := e.Expires.Sub(now)
		if left <= 0 {
			continue
		}
		for _, o := range openings {
			if opensOn(c, e.Name, e.Addr, o) {
				all = append(all, Attributed{Name: e.Name, Addr: e.Addr, Opening: o, Timeout: left})
			}
		}
	}
	return all
}

// opensOn says that what a name opens is open on one of its addresses.
func opensOn(c *policy.Compiled, name string, addr netip.Addr, o policy.Opening) bool {
	return o.Protocol != policy.UDP || c.OpensUDP(name, addr, o.Port)
}

// AddAttributed opens, before the resolver's answer is written, what the policy
// in force opens for the name on the addresses, for the TTL and the grace that
// attribution gives it.
func (f *Firewall) AddAttributed(name string, addrs []netip.Addr, ttl time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.in.Policy == nil || f.in.Lockdown {
		return nil
	}
	now := f.now()
	f.pruneLocked(now)
	if err := f.shutNameLocked(name, addrs, ttl+attribution.Grace, now); err != nil {
		return err
	}
	openings := f.in.Policy.Openings(name)
	if len(openings) == 0 {
		return nil
	}
	var add []Attributed
	for _, addr := range addrs {
		addr = addr.Unmap()
		for _, o := range openings {
			// What stands for long enough is not written again.
			if until := f.openings[addr][o]; opensOn(f.in.Policy, name, addr, o) && until.Before(now.Add(ttl+attribution.Grace/2)) {
				add = append(add, Attributed{Name: name, Addr: addr, Opening: o, Timeout: ttl + attribution.Grace})
			}
		}
	}
	if err := f.kernel.Change(joinedTable(), changesOf(add, nil)...); err != nil {
		return err
	}
	for _, a := range add {
		f.rememberLocked(a, now)
	}
	return nil
}

func joinedTable() Table { return Table{Family: Inet, Name: TableName} }

// changesOf groups openings by set.
func changesOf(add, del []Attributed) []SetChange {
	var changes []SetChange
	at := func(s Set) *SetChange {
		for i := range changes {
			if changes[i].Set.Name == s.Name {
				return &changes[i]
			}
		}
		changes = append(changes, SetChange{Set: s})
		return &changes[len(changes)-1]
	}
	for _, a := range add {
		if s, e, ok := a.place(); ok {
			c := at(s)
			c.Add = append(c.Add, e)
		}
	}
	for _, a := range del {
		if s, e, ok := a.place(); ok {
			c := at(s)
			c.Del = append(c.Del, e)
		}
	}
	return changes
}
