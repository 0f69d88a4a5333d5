package firewall

import (
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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
	if old.Document().Mode != c.Document().Mode || old.HoldsDeniedName() != c.HoldsDeniedName() || !slices.Equal(old.Floor(), c.Floor()) {
		return false, false, nil
	}
	changed, names, ok := changedTargets(old, c)
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
	err = f.kernel.Change(joinedTable(), sets...)
	if errors.Is(err, unix.ENFILE) {
		return false, false, nil // a set that has outgrown its size is made anew
	}
	if err != nil {
		return false, false, err
	}
	for _, a := range del {
		delete(f.openings[a.Addr], a.Opening)
	}
	for _, a := range add {
		f.rememberLocked(a, now)
	}
	f.in.Policy = c
	narrower = slices.ContainsFunc(sets, func(c SetChange) bool { return len(c.Del) > 0 })
	return true, narrower, nil
}

// mixed says that elements both come and go. A packet that is being judged
// meanwhile may see one set before and another after the change, which is
// harmless only where every change goes the same way.
func mixed(changes []SetChange) bool {
	var come, gone bool
	for _, c := range changes {
		come = come || len(c.Add) > 0
		gone = gone || len(c.Del) > 0
	}
	return come && gone
}

// changedTargets compares two policies: which allowed addresses' targets differ,
// and which name targets. ok is false where they differ by too much, or by what
// stands in a set of ranges, as every denied address may: the denial of an IPv4
// address is also that of the IPv6 prefixes that lead there.
func changedTargets(was, is *policy.Compiled) (addrs []netip.Addr, names []policy.Target, ok bool) {
	allowed, denied := policy.Differing(was, is)
	if len(allowed.Gone)+len(allowed.Come)+len(denied.Gone)+len(denied.Come) > patchLimit {
		return nil, nil, false
	}
	for _, t := range slices.Concat(denied.Gone, denied.Come) {
		if !t.IsName() {
			return nil, nil, false
		}
		names = append(names, t)
	}
	for _, t := range slices.Concat(allowed.Gone, allowed.Come) {
		switch {
		case t.IsName():
			names = append(names, t)
		case t.Prefix.Bits() < t.Prefix.Addr().BitLen(), t.Port == 53:
			return nil, nil, false
		case !slices.Contains(addrs, t.Prefix.Addr()):
			addrs = append(addrs, t.Prefix.Addr())
		}
	}
	return addrs, names, true
}

// hostChanges says how the sets of exact addresses change for the addresses.
func hostChanges(old, now *policy.Compiled, addrs []netip.Addr) []SetChange {
	var changes []SetChange
	was, is := placesOf(old, addrs), placesOf(now, addrs)
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

// placesOf are the elements that a policy has for some allowed addresses.
func placesOf(c *policy.Compiled, addrs []netip.Addr) map[place]Set {
	places := map[place]Set{}
	for _, addr := range addrs {
		for _, r := range c.AllowedAddress(addr) {
			for _, fam := range families() {
				if addr.Is4() != fam.v4 {
					continue
				}
				for _, p := range fam.protocols(r) {
					if r.Port != 0 {
						set := fam.hostSet(listAllow)
						places[place{set.Name, Key(addr, r.Port, p)}] = set
					} else {
						set := fam.anySet(listAllow)
						places[place{set.Name, Key(addr, p)}] = set
					}
				}
			}
		}
	}
	return places
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
