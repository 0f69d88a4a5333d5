package firewall

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/policy"
)

// patchLimit is how many targets may differ for a swap to be made in place.
const patchLimit = 64

// patchLocked makes a swap in place where only few targets differ, none of which
// is a range: the rules stay, elements change, at any size of policy. false
// means that it takes the whole way.
func (f *Firewall) patchLocked(c *policy.Compiled, attributed iter.Seq[attribution.Entry]) (bool, error) {
	old := f.in.Policy
	if f.stale || old == nil || c == nil || f.in.Lockdown {
		return false, nil
	}
	was, is := old.Document(), c.Document()
	if was.Mode != is.Mode || old.HoldsDeniedName() != c.HoldsDeniedName() || !slices.Equal(old.Floor(), c.Floor()) {
		return false, nil
	}
	changes, names, ok := f.hostChanges(was, is)
	if !ok {
		return false, nil
	}
	now := f.now()
	add, del := f.openingChangesLocked(c, names, attributed, now)
	counts := map[place]int{}
	var sets []SetChange
	for p, n := range changes {
		counts[p] = f.hosts[p] + n.by
		switch had := f.hosts[p] > 0; {
		case had && counts[p] <= 0:
			sets = mergeChange(sets, SetChange{Set: n.set, Del: []Element{{Key: p.key}}})
		case !had && counts[p] > 0:
			sets = mergeChange(sets, SetChange{Set: n.set, Add: []Element{{Key: p.key}}})
		}
	}
	if err := f.kernel.Change(joinedTable(), append(sets, changesOf(add, del)...)...); err != nil {
		return false, err
	}
	for p, n := range counts {
		if n <= 0 {
			delete(f.hosts, p)
			continue
		}
		f.hosts[p] = n
	}
	for _, a := range del {
		delete(f.openings[a.Addr], a.Opening)
	}
	for _, a := range add {
		f.rememberLocked(a, now)
	}
	f.in.Policy = c
	return true, nil
}

func mergeChange(sets []SetChange, c SetChange) []SetChange {
	for i := range sets {
		if sets[i].Set.Name == c.Set.Name {
			sets[i].Add = append(sets[i].Add, c.Add...)
			sets[i].Del = append(sets[i].Del, c.Del...)
			return sets
		}
	}
	return append(sets, c)
}

// countChange is by how much the targets behind an element change.
type countChange struct {
	set Set
	by  int
}

// hostChanges compares two documents: how the elements of exact addresses
// change, and which name targets differ. ok is false where they differ by too
// much, or by a range.
func (f *Firewall) hostChanges(was, is policy.Document) (changes map[place]countChange, names []policy.Target, ok bool) {
	changes = map[place]countChange{}
	for _, l := range []struct {
		list     string
		was, now []policy.Target
	}{{listAllow, was.Allowed, is.Allowed}, {listDeny, was.Denied, is.Denied}} {
		gone, come := differing(l.was, l.now)
		if len(gone)+len(come) > patchLimit {
			return nil, nil, false
		}
		for by, targets := range map[int][]policy.Target{-1: gone, 1: come} {
			for _, t := range targets {
				switch {
				case t.IsName():
					names = append(names, t)
				case t.Prefix.Bits() < t.Prefix.Addr().BitLen(), t.Port == 53:
					return nil, nil, false
				default:
					eachHost(l.list, targetRule(t), func(s Set, key string) {
						p := place{s.Name, key}
						changes[p] = countChange{s, changes[p].by + by}
					})
				}
			}
		}
	}
	return changes, names, true
}

// differing cuts off what two lists begin and end with alike.
func differing(a, b []policy.Target) (gone, come []policy.Target) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// targetRule is what an address target covers.
func targetRule(t policy.Target) policy.AddressRule {
	r := policy.AddressRule{Prefix: t.Prefix, Port: t.Port}
	switch t.Proto {
	case policy.ProtocolTCP:
		r.TCP = true
	case policy.ProtocolUDP:
		r.UDP = true
	case policy.ProtocolUnset, policy.ProtocolAny:
		r.TCP, r.UDP, r.ICMP = true, true, true
	}
	return r
}

// eachHost gives the elements of a rule for one address.
func eachHost(list string, r policy.AddressRule, f func(Set, string)) {
	for _, fam := range families() {
		if r.Prefix.Addr().Is4() != fam.v4 {
			continue
		}
		for _, p := range fam.protocols(r) {
			if r.Port != 0 {
				f(fam.hostSet(list), Key(r.Prefix.Addr(), r.Port, p))
			} else {
				f(fam.anySet(list), Key(r.Prefix.Addr(), p))
			}
		}
	}
}

// hostCounts counts the targets behind each element of exact addresses.
func hostCounts(c *policy.Compiled) map[place]int {
	counts := map[place]int{}
	if c == nil {
		return counts
	}
	denied := c.DeniedAddresses()
	if c.Document().Mode == policy.ModeDenylist {
		denied = append(slices.Clone(denied), metadataRules()...)
	}
	for list, rules := range map[string][]policy.AddressRule{listAllow: c.AllowedAddresses(), listDeny: denied} {
		for _, r := range rules {
			if r.Prefix.Bits() == r.Prefix.Addr().BitLen() {
				eachHost(list, r, func(s Set, key string) { counts[place{s.Name, key}]++ })
			}
		}
	}
	return counts
}

// openingChangesLocked compares what the kernel holds for addresses of names
// whose targets changed with what the policy opens on them.
func (f *Firewall) openingChangesLocked(c *policy.Compiled, changed []policy.Target, attributed iter.Seq[attribution.Entry], now time.Time) (add, del []Attributed) {
	if len(changed) == 0 {
		return nil, nil
	}
	if attributed == nil {
		attributed = func(func(attribution.Entry) bool) {}
	}
	touched := map[netip.Addr]bool{}
	for name, addrs := range f.byName {
		if slices.ContainsFunc(changed, func(t policy.Target) bool { return covers(t, name) }) {
			maps.Copy(touched, addrs)
		}
	}
	for e := range attributed {
		if slices.ContainsFunc(changed, func(t policy.Target) bool { return covers(t, e.Name) }) {
			touched[e.Addr] = true
		}
	}
	if len(touched) == 0 {
		return nil, nil
	}
	wanted := openingsOf(c, func(yield func(attribution.Entry) bool) {
		for e := range attributed {
			if touched[e.Addr] && !yield(e) {
				return
			}
		}
	}, now)
	keep := map[netip.Addr]map[policy.Opening]bool{}
	for _, a := range wanted {
		if keep[a.Addr] == nil {
			keep[a.Addr] = map[policy.Opening]bool{}
		}
		keep[a.Addr][a.Opening] = true
		if !f.openings[a.Addr][a.Opening].After(now) {
			add = append(add, a)
		}
	}
	for addr := range touched {
		for o := range f.openings[addr] {
			if !keep[addr][o] {
				del = append(del, Attributed{Addr: addr, Opening: o, Timeout: time.Second})
			}
		}
	}
	return add, del
}

// covers says that the name target matches the name (policy.md section 2).
func covers(t policy.Target, name string) bool {
	if !t.Wildcard {
		return t.Name == name
	}
	return len(name) > len(t.Name) && strings.HasSuffix(name, t.Name) && name[len(name)-len(t.Name)-1] == '.'
}
