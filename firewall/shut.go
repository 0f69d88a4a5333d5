package firewall

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/policy"
)

// Where everything goes straight out but some names are denied, UDP to an
// address that was handed out for denied names alone is denied on the ports that
// those targets cover (policy.md section 3, step 2). Such names are resolved
// only where their targets leave something open: a port or a protocol.

// shutSet and shutAnySet hold what is denied so, on a port and on every port.
func (f family) shutSet() Set {
	return Set{Name: "shut" + f.digit, Fields: []Field{f.addr, FieldPort}, Timeout: true}
}

func (f family) shutAnySet() Set {
	return Set{Name: "shut" + f.digit + suffixAny, Fields: []Field{f.addr}, Timeout: true}
}

// seenNames are the names that an address was handed out for, and until when.
type seenNames map[netip.Addr]map[string]time.Time

func (s seenNames) add(name string, addr netip.Addr, until time.Time) {
	if s[addr] == nil {
		s[addr] = map[string]time.Time{}
	}
	if until.After(s[addr][name]) {
		s[addr][name] = until
	}
}

// deniesByName says that names are denied where else everything is open.
func deniesByName(c *policy.Compiled) bool {
	if c == nil || !c.HoldsDeniedName() {
		return false
	}
	mode := c.Document().Mode
	return mode == policy.ModePublic || mode == policy.ModeDenylist
}

// shutPorts are the ports (0: all) on which targets deny UDP to the name.
func shutPorts(c *policy.Compiled, name string) []uint16 {
	var ports []uint16
	for _, list := range [][]policy.Target{c.Document().Denied, c.Floor()} {
		for _, t := range list {
			if t.IsName() && t.Proto != policy.ProtocolTCP && covers(t, name) {
				ports = append(ports, t.Port)
			}
		}
	}
	return ports
}

// shutAt are the ports denied on an address: those that every name of it shuts.
func shutAt(c *policy.Compiled, addr netip.Addr, names map[string]time.Time, now time.Time) []Attributed {
	var live [][]uint16
	var left time.Duration
	for name, until := range names {
		if until.After(now) {
			live = append(live, shutPorts(c, name))
			left = max(left, until.Sub(now))
		}
	}
	var shut []Attributed
	for _, port := range slices.Concat(live...) {
		every := !slices.ContainsFunc(live, func(ports []uint16) bool {
			return !slices.Contains(ports, port) && !slices.Contains(ports, 0)
		})
		a := Attributed{Addr: addr, Opening: policy.Opening{Port: port, Protocol: policy.UDP}, Timeout: left}
		if every && !slices.Contains(shut, a) {
			shut = append(shut, a)
		}
	}
	return shut
}

// shutOf are all denied openings of a policy.
func shutOf(c *policy.Compiled, seen seenNames, now time.Time) []Attributed {
	if !deniesByName(c) {
		return nil
	}
	var all []Attributed
	for addr, names := range seen {
		all = append(all, shutAt(c, addr, names, now)...)
	}
	return all
}

func seenIn(c *policy.Compiled, attributed iter.Seq[attribution.Entry]) seenNames {
	seen := seenNames{}
	if attributed != nil && deniesByName(c) {
		for e := range attributed {
			seen.add(e.Name, e.Addr, e.Expires)
		}
	}
	return seen
}

// shutPlace is Attributed.place for denied openings.
func (a Attributed) shutPlace() (Set, Element) {
	f := families()[1]
	if a.Addr.Is4() {
		f = families()[0]
	}
	if a.Opening.Port == 0 {
		return f.shutAnySet(), Element{Key: Key(a.Addr), Timeout: a.Timeout}
	}
	return f.shutSet(), Element{Key: Key(a.Addr, a.Opening.Port), Timeout: a.Timeout}
}

// shutSets are the four sets of denied openings, filled.
func shutSets(entries []Attributed) []Set {
	var sets []Set
	for _, f := range families() {
		sets = append(sets, f.shutSet(), f.shutAnySet())
	}
	for _, a := range entries {
		of, e := a.shutPlace()
		for i := range sets {
			if sets[i].Name == of.Name {
				sets[i].Elements = append(sets[i].Elements, e)
			}
		}
	}
	for i := range sets {
		sets[i].Elements = unique(sets[i].Elements)
	}
	return sets
}

// shutNameLocked notes that a name was handed out, and changes what is denied on
// its addresses: more, or less where the name is not denied.
func (f *Firewall) shutNameLocked(name string, addrs []netip.Addr, life time.Duration, now time.Time) error {
	c := f.in.Policy
	if !deniesByName(c) {
		return nil
	}
	var changes []SetChange
	for _, addr := range addrs {
		addr = addr.Unmap()
		before := shutAt(c, addr, f.seen[addr], now)
		f.seen.add(name, addr, now.Add(life))
		after := shutAt(c, addr, f.seen[addr], now)
		for _, a := range after {
			set, e := a.shutPlace()
			changes = mergeChange(changes, SetChange{Set: set, Add: []Element{e}})
		}
		for _, a := range before {
			same := func(b Attributed) bool { return a.Opening == b.Opening }
			if set, e := a.shutPlace(); !slices.ContainsFunc(after, same) {
				changes = mergeChange(changes, SetChange{Set: set, Del: []Element{e}})
			}
		}
	}
	return f.kernel.Change(joinedTable(), changes...)
}
