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
// means that it takes the whole way. narrower says that it took something away.
func (f *Firewall) patchLocked(c *policy.Compiled, attributed iter.Seq[attribution.Entry]) (patched, narrower bool, err error) {
	old := f.in.Policy
	if f.stale || old == nil || c == nil || f.in.Lockdown {
		return false, false, nil
	}
	was, is := old.Document(), c.Document()
	if was.Mode != is.Mode || old.HoldsDeniedName() != c.HoldsDeniedName() || !slices.Equal(old.Floor(), c.Floor()) {
		return false, false, nil
	}
	changed, names, ok := changedTargets(was, is)
	if !ok || len(names) > 0 && deniesByName(c) {
		return false, false, nil
	}
	now := f.now()
	sets := hostChanges(old, c, changed)
	add, del := f.openingChangesLocked(c, names, attributed, now)
	sets = append(sets, changesOf(add, del)...)
	if mixed(sets) {
		return false, false, nil
	}
	if err := f.kernel.Change(joinedTable(), sets...); err != nil {
		return false, false, err
	}
	for _, a := range del {
		delete(f.openings[a.Addr], a.Opening)
	}
	for _, a := range add {
		f.rememberLocked(a, now)
	}
	f.in.Policy = c
	narrower = len(del) > 0 || slices.ContainsFunc(sets, func(c SetChange) bool {
		if strings.HasPrefix(c.Set.Name, listDeny) {
			return len(c.Add) > 0
		}
		return len(c.Del) > 0
	})
	return true, narrower, nil
}

// mixed says that elements both come and go. A packet that is being judged
// meanwhile may see one set before and another after the change, which is
// harmless only where every change goes the same way.
func mixed(changes []SetChange) bool {
	var come, gone, allow, deny bool
	for _, c := range changes {
		come = come || len(c.Add) > 0
		gone = gone || len(c.Del) > 0
		denies := strings.HasPrefix(c.Set.Name, listDeny)
		deny, allow = deny || denies, allow || !denies
	}
	return come && gone || allow && deny
}

// changedTargets compares two documents: which addresses' targets differ, by
// list, and which name targets. ok is false where they differ by too much, or by
// a range.
func changedTargets(was, is policy.Document) (addrs map[string][]netip.Addr, names []policy.Target, ok bool) {
	addrs = map[string][]netip.Addr{}
	for _, l := range []struct {
		list     string
		was, now []policy.Target
	}{{listAllow, was.Allowed, is.Allowed}, {listDeny, was.Denied, is.Denied}} {
		gone, come := differing(l.was, l.now)
		if len(gone)+len(come) > patchLimit {
			return nil, nil, false
		}
		for _, t := range slices.Concat(gone, come) {
			switch {
			case t.IsName():
				names = append(names, t)
			case t.Prefix.Bits() < t.Prefix.Addr().BitLen(), t.Port == 53:
				return nil, nil, false
			case !slices.Contains(addrs[l.list], t.Prefix.Addr()):
				addrs[l.list] = append(addrs[l.list], t.Prefix.Addr())
			}
		}
	}
	return addrs, names, true
}

// hostChanges says how the sets of exact addresses change for the addresses.
func hostChanges(old, now *policy.Compiled, addrs map[string][]netip.Addr) []SetChange {
	var changes []SetChange
	for list, changed := range addrs {
		was, is := placesOf(old, list, changed), placesOf(now, list, changed)
		for p, set := range was {
			if _, stays := is[p]; !stays {
				changes = mergeChange(changes, SetChange{Set: set, Del: []Element{{Key: p.key}}})
			}
		}
		for p, set := range is {
			if _, stood := was[p]; !stood {
				changes = mergeChange(changes, SetChange{Set: set, Add: []Element{{Key: p.key}}})
			}
		}
	}
	return changes
}

func mergeChange(changes []SetChange, c SetChange) []SetChange {
	for i := range changes {
		if changes[i].Set.Name == c.Set.Name {
			changes[i].Add = append(changes[i].Add, c.Add...)
			changes[i].Del = append(changes[i].Del, c.Del...)
			return changes
		}
	}
	return append(changes, c)
}

// place is an element of a set.
type place struct{ set, key string }

// placesOf are the elements that a policy has for some addresses; it looks at
// every target, since several may mean the same.
func placesOf(c *policy.Compiled, list string, addrs []netip.Addr) map[place]Set {
	places := map[place]Set{}
	note := func(r policy.AddressRule) {
		if r.Prefix.IsValid() && r.Prefix.Bits() == r.Prefix.Addr().BitLen() && slices.Contains(addrs, r.Prefix.Addr()) {
			eachHost(list, r, func(s Set, key string) { places[place{s.Name, key}] = s })
		}
	}
	d := c.Document()
	targets := [][]policy.Target{d.Allowed}
	if list == listDeny {
		targets = [][]policy.Target{d.Denied, c.Floor()}
		if d.Mode == policy.ModeDenylist {
			for _, r := range metadataRules() {
				note(r)
			}
		}
	}
	for _, some := range targets {
		for i := range some {
			if a := some[i].Prefix; a.IsValid() && slices.Contains(addrs, a.Addr()) {
				note(targetRule(some[i]))
			}
		}
	}
	return places
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
