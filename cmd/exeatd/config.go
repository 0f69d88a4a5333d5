//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sidecar"
)

// resolvConf is what --resolver-from-file reads.
const resolvConf = "/etc/resolv.conf"

// read gives what the settings come to, checked; the error has all that is wrong.
func (s *settings) read(p *program, flags *pflag.FlagSet) (sidecar.JoinedConfig, error) {
	c := sidecar.JoinedConfig{Version: version()}
	if err := s.layer(p, flags); err != nil {
		return c, err
	}
	var problems []error
	note := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	note(s.readPolicy(p, &c))
	note(s.readNames(&c))
	note(s.readControl(&c))
	note(s.readRules(&c))
	if len(problems) > 0 {
		return c, &usageError{errors.Join(problems...)}
	}
	return c, nil
}

// readPolicy reads which policy is in force first.
func (s *settings) readPolicy(p *program, c *sidecar.JoinedConfig) error {
	written := len(s.allow)+len(s.deny) > 0 || s.mode != ""
	switch {
	case s.policy != "" && written:
		return errors.New("--policy: excludes --allow, --deny and --mode: put them in the document")
	case s.phase != "" && (s.policy != "" || written):
		return errors.New("--phase: excludes --policy, --allow, --deny and --mode: it says which of --phases to begin in")
	case s.phase != "" && s.phases == "":
		return errors.New("--phase: stands beside --phases FILE only")
	}
	if s.phases != "" {
		if err := s.readPhases(p, c); err != nil {
			return err
		}
	}
	switch {
	case s.policy != "":
		data, err := readFile("--policy", s.policy, maxConfig+1)
		if err != nil {
			return err
		}
		return parsePolicy(p, c, "--policy "+s.policy, data)
	case written:
		data, err := s.document()
		if err != nil {
			return err
		}
		return parsePolicy(p, c, "--mode, --allow and --deny", data)
	case s.phases != "":
		return s.enter(c)
	}
	c.Policy = policy.Document{Mode: policy.ModeNoNetwork}
	return nil
}

// document makes a document of --mode, --allow and --deny.
func (s *settings) document() ([]byte, error) {
	mode := s.mode
	if mode == "" {
		mode = string(policy.ModeAllowlist)
		if len(s.allow) == 0 {
			mode = string(policy.ModeDenylist)
		}
	}
	document := map[string]any{"network_mode": mode}
	if len(s.allow) > 0 {
		document["allowed_hosts"] = s.allow
	}
	if len(s.deny) > 0 {
		document["denied_hosts"] = s.deny
	}
	return json.Marshal(document)
}

func parsePolicy(p *program, c *sidecar.JoinedConfig, name string, data []byte) error {
	document, warnings, err := policy.Parse(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p.warn(name, warnings)
	c.Policy = document
	return nil
}

func (p *program) warn(name string, warnings []policy.Problem) {
	for _, w := range warnings {
		fmt.Fprintf(p.err, "exeatd: warning: %s: %s\n", name, w)
	}
}

func (s *settings) readPhases(p *program, c *sidecar.JoinedConfig) error {
	data, err := readFile("--phases", s.phases, maxConfig+1)
	if err != nil {
		return err
	}
	plan, warnings, err := policy.ReadPlan(policy.PlanInput{File: &policy.PhasesSource{Name: s.phases, Data: data}})
	if err != nil {
		return fmt.Errorf("--phases %s: %w", s.phases, err)
	}
	p.warn("--phases "+s.phases, warnings)
	c.Phases = plan.Phases
	return nil
}

// enter begins in a phase.
func (s *settings) enter(c *sidecar.JoinedConfig) error {
	names := make([]string, 0, len(c.Phases))
	for _, phase := range c.Phases {
		if phase.Name == s.phase || s.phase == "" {
			c.Policy, c.Phase = phase.Policy, phase.Name
			return nil
		}
		names = append(names, phase.Name)
	}
	return fmt.Errorf("--phase %q: %s has no such phase, it has: %s", s.phase, s.phases, strings.Join(names, ", "))
}

// readNames reads what names are asked of, and reached through.
func (s *settings) readNames(c *sidecar.JoinedConfig) error {
	var problems []error
	for _, r := range s.resolvers {
		if _, err := dnsfilter.ParseUpstream(r); err != nil {
			problems = append(problems, fmt.Errorf("--resolver: %w", err))
		}
	}
	if len(s.resolvers) > 0 && s.resolverFromFile {
		problems = append(problems, errors.New("--resolver-from-file: excludes --resolver"))
	}
	if s.resolverFromFile && s.state == "" {
		problems = append(problems, errors.New("--resolver-from-file: needs --state DIR, to remember what was read: at a restart the sandbox may have written the file"))
	}
	c.Resolvers = s.resolvers
	if s.resolverFromFile {
		c.ResolvConf = resolvConf
	}
	c.Pins = map[string][]netip.Addr{}
	for _, arg := range s.hosts {
		if err := addHost(c.Pins, arg); err != nil {
			problems = append(problems, err)
		}
	}
	if s.upstreamProxy != "" {
		u, err := url.Parse(s.upstreamProxy)
		if err != nil || u.Scheme != "http" || u.Hostname() == "" || (u.Path != "" && u.Path != "/") {
			// What it was is not repeated: it may hold a password.
			problems = append(problems, errors.New("--upstream-proxy: want http://[USER:PASSWORD@]HOST:PORT"))
		} else {
			if u.Port() == "" {
				u.Host += ":3128"
			}
			c.UpstreamProxy = u.String()
		}
	}
	return errors.Join(problems...)
}

// addHost reads NAME=ADDR[,ADDR…].
func addHost(pins map[string][]netip.Addr, arg string) error {
	name, list, ok := strings.Cut(arg, "=")
	host, err := policy.ParseHost(name)
	if !ok || err != nil || host.Name == "" {
		return fmt.Errorf("--add-host %q: want NAME=ADDR, such as db.test=192.0.2.7", arg)
	}
	for text := range strings.SplitSeq(list, ",") {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return fmt.Errorf("--add-host %q: %q is not an address", arg, text)
		}
		pins[host.Name] = append(pins[host.Name], addr.Unmap())
	}
	return nil
}

// sandboxName is what a sandbox may be called.
var sandboxName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)

func (s *settings) readControl(c *sidecar.JoinedConfig) error {
	var problems []error
	for _, id := range []struct {
		setting, text string
		to            **uint32
	}{{"--control-uid", s.controlUID, &c.ControlUID}, {"--control-gid", s.controlGID, &c.ControlGID}} {
		if id.text == "" {
			continue
		}
		n, err := strconv.ParseUint(id.text, 10, 32)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %q: want a number", id.setting, id.text))
			continue
		}
		value := uint32(n)
		*id.to = &value
	}
	if s.control != "none" {
		c.Control = s.control
	}
	if s.log != "-" {
		c.LogFile = s.log
	}
	c.StateDir, c.Name = s.state, s.name
	if s.name != "" && !sandboxName.MatchString(s.name) {
		problems = append(problems, fmt.Errorf("--name %q: want 1 to 64 letters, digits, '_', '.' and '-', the first a letter or digit", s.name))
	}
	return errors.Join(problems...)
}

func (s *settings) readRules(c *sidecar.JoinedConfig) error {
	var problems []error
	for _, text := range s.floor {
		if _, err := policy.ParseTarget(text); err != nil {
			problems = append(problems, fmt.Errorf("--floor %q: %w", text, err))
		}
	}
	for _, text := range s.inbound {
		openings, err := parseInbound(text)
		if err != nil {
			problems = append(problems, err)
		}
		c.Inbound = append(c.Inbound, openings...)
	}
	switch c.OnBreach = sidecar.OnBreach(s.onBreach); c.OnBreach {
	case sidecar.BreachDeny, sidecar.BreachReport:
	default:
		problems = append(problems, fmt.Errorf("--on-breach %q: want deny or report", s.onBreach))
	}
	switch s.netRaw {
	case "yes":
		c.NetRaw = true
	case "no":
	default:
		problems = append(problems, fmt.Errorf("--sandbox-net-raw %q: want yes or no", s.netRaw))
	}
	c.Floor, c.StrictDestinations = s.floor, s.strictDestinations
	c.NoEgressHook = s.noEgressHook
	c.Schedule, c.Drain = s.schedule, s.drain
	if s.schedule <= 0 {
		problems = append(problems, fmt.Errorf("--schedule %s: want more than 0", s.schedule))
	}
	if s.drain <= 0 {
		problems = append(problems, fmt.Errorf("--drain %s: want more than 0", s.drain))
	}
	return errors.Join(problems...)
}

// parseInbound reads PORT[/tcp|/udp], or all.
func parseInbound(text string) ([]policy.Opening, error) {
	if text == "all" {
		return []policy.Opening{{Protocol: policy.TCP}, {Protocol: policy.UDP}}, nil
	}
	number, word, named := strings.Cut(text, "/")
	port, err := strconv.ParseUint(number, 10, 16)
	protocol := policy.TCP
	if word == "udp" {
		protocol = policy.UDP
	}
	if err != nil || port == 0 || named && word != "tcp" && word != "udp" {
		return nil, fmt.Errorf("--inbound %q: want PORT, PORT/tcp, PORT/udp or all, such as 8080", text)
	}
	return []policy.Opening{{Port: uint16(port), Protocol: protocol}}, nil
}
