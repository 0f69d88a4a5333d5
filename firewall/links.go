package firewall

import (
	"fmt"
	"slices"
)

// LinkSeen takes up what WatchLinks reports: a link without an egress chain gets
// one, and one that went loses it. Where a chain cannot be made everything is
// locked down, and the error says why: the agent could send on that link what no
// rule of ours sees (bypass.md B21). hooked says that a chain was added.
// A ruleset without egress chains, or with one on every link, needs nothing.
func (f *Firewall) LinkSeen(l Link) (hooked bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.in.AnyLink || len(f.in.Links) == 0 || l.Name == "lo" {
		return false, nil
	}
	known := slices.Contains(f.in.Links, l.Name)
	if known == !l.Gone && f.linkIndex[l.Name] == l.Index {
		return false, nil
	}
	in := f.in
	in.Attributed = f.attributedLocked()
	in.Shut = shutOf(in.Policy, f.seen, f.now())
	in.Links = slices.DeleteFunc(slices.Clone(in.Links), func(name string) bool { return name == l.Name })
	if l.Gone {
		// The last link that goes leaves its name, so that the next one is hooked.
		if len(in.Links) > 0 {
			err = f.applyLocked(in)
		}
		delete(f.linkIndex, l.Name)
		return false, err
	}
	in.Links = append(in.Links, l.Name)
	if err = f.applyLocked(in); err == nil {
		f.linkIndex[l.Name] = l.Index
		return !known, nil
	}
	in.Lockdown, in.Links = true, f.in.Links
	if lockErr := f.applyLocked(in); lockErr != nil {
		return false, fmt.Errorf("link %s has no egress chain (%w), and lockdown failed: %w", l.Name, err, lockErr)
	}
	return false, fmt.Errorf("locked down: link %s has no egress chain: %w", l.Name, err)
}
