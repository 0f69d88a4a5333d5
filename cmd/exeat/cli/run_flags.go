//go:build !image

package cli

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
)

// policyFlags say which policy a sandbox begins with. Without any of them it is
// an allowlist of nothing.
type policyFlags struct {
	file          string
	allow, deny   []string
	mode          string
	phases, phase string
}

func (f *policyFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.file, "policy", "", "the policy document in `FILE`")
	flags.StringArrayVar(&f.allow, "allow", nil, "allow only this `TARGET` (repeatable)")
	flags.StringArrayVar(&f.deny, "deny", nil, "deny this `TARGET` (repeatable): a hole in --allow, or a denylist without it")
	flags.StringVar(&f.mode, "mode", "", "the `MODE`: public, no-network, allowlist or denylist")
	flags.StringVar(&f.phases, "phases", "", "named policies from a phases document in `FILE` (see exeat plan)")
	flags.StringVar(&f.phase, "phase", "", "begin in the phase `NAME` of --phases (default: its first)")
	cmd.MarkFlagsMutuallyExclusive("policy", "allow")
	cmd.MarkFlagsMutuallyExclusive("policy", "deny")
	cmd.MarkFlagsMutuallyExclusive("policy", "mode")
	for _, other := range []string{"policy", "allow", "deny", "mode"} {
		cmd.MarkFlagsMutuallyExclusive("phase", other)
	}
	complete(cmd, "mode", "public", "no-network", "allowlist", "denylist")
}

// beginning is the policy that a sandbox begins with, and what it may enter later.
type beginning struct {
	document policy.Document
	phase    string
	phases   []policy.Phase
}

// read gives the policy of the flags.
func (f *policyFlags) read(s *streams) (beginning, error) {
	var b beginning
	if f.phases != "" {
		input, err := s.planInput([]string{f.phases}, planFlags{})
		if err != nil {
			return b, err
		}
		plan, warnings, err := policy.ReadPlan(input)
		if err != nil {
			return b, invalid(f.phases, err)
		}
		s.warn(f.phases, warnings)
		b.phases = plan.Phases
	}
	var err error
	switch {
	case f.file != "":
		b.document, err = s.readPolicy(f.file)
	case f.phases != "" && f.mode == "" && len(f.allow)+len(f.deny) == 0:
		return f.enter(b)
	default:
		b.document, err = f.written(s)
	}
	return b, err
}

// enter begins in the phase of --phase, or in the document's first.
func (f *policyFlags) enter(b beginning) (beginning, error) {
	names := make([]string, 0, len(b.phases))
	for _, p := range b.phases {
		if p.Name == f.phase || f.phase == "" {
			b.document, b.phase = p.Policy, p.Name
			return b, nil
		}
		names = append(names, p.Name)
	}
	return b, usagef("%s has no phase %q%s (it has: %s)", f.phases, f.phase, didYouMean("", f.phase, names), strings.Join(names, ", "))
}

// written makes a document of --mode, --allow and --deny, so that they are held
// to the same grammar, with the same complaints, as a document in a file.
func (f *policyFlags) written(s *streams) (policy.Document, error) {
	mode := f.mode
	if mode == "" {
		mode = string(policy.ModeAllowlist)
		if len(f.allow) == 0 && len(f.deny) > 0 {
			mode = string(policy.ModeDenylist)
		}
	}
	written := map[string]any{"network_mode": mode}
	if len(f.allow) > 0 {
		written["allowed_hosts"] = f.allow
	}
	if len(f.deny) > 0 {
		written["denied_hosts"] = f.deny
	}
	data, err := json.Marshal(written)
	if err != nil {
		return policy.Document{}, err
	}
	document, warnings, err := policy.Parse(data)
	if err != nil {
		return policy.Document{}, invalid("command line", err)
	}
	s.warn("command line", warnings)
	return document, nil
}

// parseHosts reads --add-host NAME=ADDR[,ADDR…].
func parseHosts(args []string) (map[string][]netip.Addr, error) {
	hosts := map[string][]netip.Addr{}
	for _, arg := range args {
		name, list, ok := strings.Cut(arg, "=")
		host, err := policy.ParseHost(name)
		if !ok || err != nil || host.Name == "" {
			return nil, usagef("--add-host %q: want NAME=ADDR, such as db.test=192.0.2.7", arg)
		}
		for text := range strings.SplitSeq(list, ",") {
			addr, err := netip.ParseAddr(text)
			if err != nil || addr.Zone() != "" {
				return nil, usagef("--add-host %q: %q is not an address", arg, text)
			}
			hosts[host.Name] = append(hosts[host.Name], addr.Unmap())
		}
	}
	return hosts, nil
}

// parseUpstreamProxy reads --upstream-proxy.
func parseUpstreamProxy(arg string) (*url.URL, error) {
	if arg == "" {
		return nil, nil
	}
	u, err := url.Parse(arg)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || (u.Path != "" && u.Path != "/") {
		return nil, usagef("--upstream-proxy: want http://[USER:PASSWORD@]HOST:PORT")
	}
	if u.Port() == "" {
		u.Host += ":3128"
	}
	return u, nil
}

// sandboxName is what a sandbox may be called: it becomes the name of a file.
var sandboxName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)

func checkName(name string) error {
	if !sandboxName.MatchString(name) {
		return usagef("name %q: want 1 to 64 letters, digits, '_', '.' and '-', the first a letter or digit", name)
	}
	return nil
}

// checkCapabilities refuses a policy that an enforcement point can't hold whole.
func (s *streams) checkCapabilities(has policy.Capabilities, name string, doc policy.Document) error {
	warnings, err := has.Check(doc)
	if err != nil {
		return fmt.Errorf("this sandbox can't hold the policy whole: %w", invalid(name, err))
	}
	s.warn(name, warnings)
	return nil
}
