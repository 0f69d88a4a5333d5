package policy

import "strings"

// Mode is the mode in force: one of the four.
func (c *Compiled) Mode() Mode { return c.mode }

// HasAllowedBelow says whether an allowed name target could match a name below
// name, so that a resolver must not say that nothing exists there (RFC 8020).
func (c *Compiled) HasAllowedBelow(name string) bool {
	_, found := c.ancestors()[strings.TrimSuffix(name, ".")]
	return found
}

// ancestorsOf are the names below which a target can match: the parents of each
// name, and a wildcard's base. The root ("") is the parent of all.
func ancestorsOf(targets []Target) map[string]struct{} {
	ancestors := make(map[string]struct{})
	for _, t := range targets {
		if t.Name == "" {
			continue
		}
		name := t.Name
		if t.Wildcard {
			name = "*." + name
		}
		for name != "" {
			_, name, _ = strings.Cut(name, ".")
			if _, known := ancestors[name]; known {
				break // and so are its parents
			}
			ancestors[name] = struct{}{}
		}
	}
	return ancestors
}
