package api

import "github.com/exeat/exeat/policy"

// Diff is what a change of policy changes, as rules in document order. Order and
// duplicates never matter to an outcome, so they are no difference.
type Diff struct {
	From           policy.Mode `json:"from"`
	To             policy.Mode `json:"to"`
	AllowedAdded   []string    `json:"allowed_added,omitempty"`
	AllowedRemoved []string    `json:"allowed_removed,omitempty"`
	DeniedAdded    []string    `json:"denied_added,omitempty"`
	DeniedRemoved  []string    `json:"denied_removed,omitempty"`
}

// Empty says whether nothing changes.
func (d Diff) Empty() bool {
	return d.From == d.To && len(d.AllowedAdded)+len(d.AllowedRemoved)+len(d.DeniedAdded)+len(d.DeniedRemoved) == 0
}

// DiffPolicies compares two documents.
func DiffPolicies(from, to policy.Document) Diff {
	return Diff{
		From: from.Mode, To: to.Mode,
		AllowedAdded: missing(from.Allowed, to.Allowed), AllowedRemoved: missing(to.Allowed, from.Allowed),
		DeniedAdded: missing(from.Denied, to.Denied), DeniedRemoved: missing(to.Denied, from.Denied),
	}
}

// missing gives the rules of b that are not in a, each once.
func missing(a, b []policy.Target) []string {
	seen := make(map[policy.Target]bool, len(a))
	for _, t := range a {
		seen[t] = true
	}
	var rules []string
	for _, t := range b {
		if !seen[t] {
			seen[t] = true
			rules = append(rules, t.String())
		}
	}
	return rules
}
