package policy

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
)

// providersJSON is what other enforcement points hold, from their manuals.
//
//go:embed providers.json
var providersJSON []byte

// self is the provider of the table that is exeat: the only one that knows what
// is exeat's own extension.
const self = "exeat"

type provider struct {
	Modes                 []Mode   `json:"modes"`
	Hostnames             bool     `json:"hostnames"`
	Wildcards             bool     `json:"wildcards"`
	IPv4                  bool     `json:"ipv4"`
	IPv6                  bool     `json:"ipv6"`
	IPv4CIDRs             bool     `json:"ipv4_cidrs"`
	IPv6CIDRs             bool     `json:"ipv6_cidrs"`
	Ports                 bool     `json:"ports"`
	UDP                   bool     `json:"udp"`
	ICMP                  bool     `json:"icmp"`
	Dynamic               bool     `json:"dynamic"`
	MaxNames              int      `json:"max_names"`
	MaxNetworks           int      `json:"max_networks"`
	MixedNamesAndNetworks *bool    `json:"mixed_names_and_networks"`
	Limits                []string `json:"limits"`
}

func providers() (map[string]provider, error) {
	var table struct {
		About     string              `json:"about"`
		Providers map[string]provider `json:"providers"`
	}
	if err := json.Unmarshal(providersJSON, &table); err != nil {
		return nil, fmt.Errorf("read the provider table: %w", err)
	}
	return table.Providers, nil
}

// Providers are the names of the provider table, sorted. They are none only if
// the embedded table is broken, which CheckProvider reports.
func Providers() []string {
	table, err := providers()
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(table))
	for name := range table {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// CheckProvider says which parts of d the named provider would not hold, and
// why; none when it holds d whole. What a bare address implies beyond TCP is no
// finding: a provider without it is narrower, never wider. The error is an
// unknown provider.
func CheckProvider(d Document, name string) ([]Problem, error) {
	table, err := providers()
	if err != nil {
		return nil, err
	}
	p, found := table[name]
	if !found {
		message := fmt.Sprintf("there is no provider %s; there are %s", quote(name), join(Providers()))
		if near, found := nearest(name, Providers()); found {
			message += fmt.Sprintf("; write %q", near)
		}
		return nil, Errors{{Message: message}}
	}
	c := &providerCheck{name: name, provider: p}
	c.document(d)
	return c.problems, nil
}

type providerCheck struct {
	name            string
	provider        provider
	problems        []Problem
	names, networks int
}

func (c *providerCheck) lacks(path, format string, args ...any) {
	message := c.name + " does not hold " + fmt.Sprintf(format, args...)
	if len(c.provider.Limits) > 0 {
		message += " (its manual notes: " + join(c.provider.Limits) + ")"
	}
	c.problems = append(c.problems, Problem{Path: path, Message: message})
}

func (c *providerCheck) document(d Document) {
	if !slices.Contains(c.provider.Modes, d.Mode) {
		modes := make([]string, len(c.provider.Modes))
		for i, m := range c.provider.Modes {
			modes[i] = string(m)
		}
		c.lacks(fieldMode, "the mode %q; it has %s", d.Mode, join(modes))
		return // it would hold no target either, for this one reason
	}
	if d.Mode == ModeAllowlist && len(d.Denied) > 0 && c.name != self {
		c.lacks(fieldDenied, "denied_hosts beside an allowlist, which is an extension of exeat's")
	}
	for i, t := range d.Allowed {
		c.target(t, atIndex(fieldAllowed, i))
	}
	if c.provider.MixedNamesAndNetworks != nil && !*c.provider.MixedNamesAndNetworks && c.names > 0 && c.networks > 0 {
		c.lacks(fieldAllowed, "names (%d) and addresses or ranges (%d) in one list", c.names, c.networks)
	}
	for i, t := range d.Denied {
		c.target(t, atIndex(fieldDenied, i))
	}
}

func (c *providerCheck) target(t Target, path string) {
	p := c.provider
	v4 := t.Prefix.Addr().Is4()
	single := t.Prefix.IsSingleIP()
	kinds := []struct {
		is, held bool
		what     string
	}{
		{t.IsName() && !t.Wildcard, p.Hostnames, "names"},
		{t.Wildcard, p.Wildcards, "wildcard names"},
		{!t.IsName() && single && v4, p.IPv4, "IPv4 addresses"},
		{!t.IsName() && single && !v4, p.IPv6, "IPv6 addresses"},
		{!t.IsName() && !single && v4, p.IPv4CIDRs, "IPv4 ranges"},
		{!t.IsName() && !single && !v4, p.IPv6CIDRs, "IPv6 ranges"},
		{t.Port != 0, p.Ports, "ports of targets"},
		{t.Proto == ProtocolUDP || t.Proto == ProtocolAny, p.UDP, "UDP"},
		{t.Proto == ProtocolAny && !t.IsName() && t.Port == 0, p.ICMP, "ICMP"},
		{t.Private, c.name == self, "private, which is an extension of exeat's"},
	}
	for _, k := range kinds {
		if k.is && !k.held {
			c.lacks(path, "%s: %q", k.what, t)
		}
	}
	if t.IsName() {
		c.names++
		if p.MaxNames > 0 && c.names > p.MaxNames {
			c.lacks(path, "more than %d names: %q is one too many", p.MaxNames, t)
		}
		return
	}
	c.networks++
	if p.MaxNetworks > 0 && c.networks > p.MaxNetworks {
		c.lacks(path, "more than %d addresses and ranges: %q is one too many", p.MaxNetworks, t)
	}
}
