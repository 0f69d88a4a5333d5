package policy

import "strings"

// HasAllowedBelow says whether an allowed name target could match a name below
// name, so that the resolver must not say that nothing exists there (RFC 8020).
func (c *Compiled) HasAllowedBelow(name string) bool {
	for _, t := range c.Document().Allowed {
		if t.Name != "" && (t.Wildcard && t.Name == name || strings.HasSuffix(t.Name, "."+name)) {
			return true
		}
	}
	return false
}
