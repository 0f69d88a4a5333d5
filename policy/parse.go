package policy

import (
	"fmt"
	"strings"
)

// The names of the members, in one place.
const (
	fieldMode     = "network_mode"
	fieldAllowed  = "allowed_hosts"
	fieldDenied   = "denied_hosts"
	fieldHost     = "host"
	fieldPort     = "port"
	fieldProtocol = "protocol"
	fieldPrivate  = "private"
)

const theModes = `"public", "no-network", "allowlist" or "denylist"`

// Parse reads a policy document (policy.md section 1). The error is an Errors
// that holds every problem of the document; the warnings are those of what is
// legal in it.
func Parse(data []byte) (Document, []Problem, error) {
	v, problems := decodeJSON(data)
	if problems != nil {
		return Document{}, nil, Errors(problems)
	}
	return parseValue(v, "")
}

// parseValue reads a policy that stands at path in a larger document.
func parseValue(v value, path string) (Document, []Problem, error) {
	p := &parser{}
	d := p.document(v, path)
	if len(p.problems) > 0 {
		return Document{}, p.warnings, Errors(p.problems)
	}
	return d, p.warnings, nil
}

// parser collects the problems and warnings of one document.
type parser struct {
	problems []Problem
	warnings []Problem
}

func (p *parser) fail(path, format string, args ...any) {
	p.problems = append(p.problems, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (p *parser) warn(path, format string, args ...any) {
	p.warnings = append(p.warnings, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (p *parser) document(v value, path string) Document {
	switch v.kind {
	case kindString:
		return p.modeString(v.text, path)
	case kindObject:
		return p.documentObject(v, path)
	case kindNull, kindBool, kindNumber, kindArray, kindOther:
	}
	advice := ""
	if v.kind == kindArray {
		advice = `; a list of hosts alone does not say what it is for: write {"network_mode": "allowlist", "allowed_hosts": […]}`
	}
	p.fail(path, `a policy is "public", "no-network" or an object with network_mode; this is %s%s`, v.describe(), advice)
	return Document{}
}

func (p *parser) modeString(word, path string) Document {
	switch mode := Mode(word); mode {
	case ModePublic, ModeNoNetwork:
		return Document{Mode: mode}
	case ModeAllowlist:
		p.fail(path, `"allowlist" alone does not say what is allowed; write {"network_mode": "allowlist", "allowed_hosts": ["example.com"]}`)
	case ModeDenylist:
		p.fail(path, `"denylist" alone does not say what is denied; write {"network_mode": "denylist", "denied_hosts": ["example.com"]}`)
	default:
		p.fail(path, "%s", unknownMode(word))
	}
	return Document{}
}

func unknownMode(word string) string {
	message := fmt.Sprintf("%s is not a network mode; a mode is %s", quote(word), theModes)
	if meant, found := modeMeant(word); found {
		message += fmt.Sprintf("; write %q", meant)
	}
	return message
}

func (p *parser) documentObject(v value, path string) Document {
	fields := p.fields(v, path, "a policy", fieldMode, fieldAllowed, fieldDenied)
	mode, legal := p.mode(fields, path)
	d := Document{Mode: mode}
	allowed, hasAllowed := fields[fieldAllowed]
	denied, hasDenied := fields[fieldDenied]
	if hasAllowed {
		d.Allowed = p.targets(allowed, at(path, fieldAllowed), false)
	}
	if hasDenied {
		d.Denied = p.targets(denied, at(path, fieldDenied), true)
	}
	if !legal {
		return d
	}
	if hasAllowed {
		p.allowedFits(mode, at(path, fieldAllowed))
	}
	if hasDenied {
		p.deniedFits(mode, at(path, fieldDenied))
	}
	if mode == ModeDenylist {
		// With allowed_hosts instead, an allowlist was meant, and that was said.
		missing := !hasDenied && !hasAllowed
		if missing || denied.kind == kindArray && len(denied.items()) == 0 {
			p.fail(at(path, fieldDenied), `a denylist of nothing lets everything out; list what is denied, or write the mode "public" if everything is meant`)
		}
		p.warn(at(path, fieldMode), "a denylist cannot hold a name against an agent that brings its own relay or DNS over HTTPS: it reaches the same host by another name; use an allowlist against such an agent")
	}
	return d
}

// mode reads network_mode; legal is false when it was reported already.
func (p *parser) mode(fields map[string]value, path string) (mode Mode, legal bool) {
	v, found := fields[fieldMode]
	path = at(path, fieldMode)
	if !found {
		advice := ""
		_, allowed := fields[fieldAllowed]
		_, denied := fields[fieldDenied]
		switch {
		case allowed:
			advice = `; with allowed_hosts write "network_mode": "allowlist"`
		case denied:
			advice = `; with denied_hosts write "network_mode": "denylist"`
		}
		p.fail(path, "network_mode is missing; it is %s%s", theModes, advice)
		return "", false
	}
	if v.kind != kindString {
		p.fail(path, "network_mode is a string, %s; this is %s", theModes, v.describe())
		return "", false
	}
	switch mode := Mode(v.text); mode {
	case ModePublic, ModeNoNetwork, ModeAllowlist, ModeDenylist:
		return mode, true
	}
	p.fail(path, "%s", unknownMode(v.text))
	return "", false
}

func (p *parser) allowedFits(mode Mode, path string) {
	switch mode {
	case ModeAllowlist:
	case ModePublic:
		p.fail(path, `allowed_hosts does not go with the mode "public", which allows everything; use the mode "allowlist" to allow these alone, or leave the list out`)
	case ModeNoNetwork:
		p.fail(path, `allowed_hosts does not go with the mode "no-network", which allows nothing; use the mode "allowlist" to allow these alone, or leave the list out`)
	case ModeDenylist:
		p.fail(path, `allowed_hosts does not go with the mode "denylist", which allows all but denied_hosts; use the mode "allowlist" to allow these alone (with denied_hosts for exceptions), or leave the list out`)
	}
}

func (p *parser) deniedFits(mode Mode, path string) {
	switch mode {
	case ModeAllowlist, ModeDenylist:
	case ModePublic:
		p.fail(path, `denied_hosts does not go with the mode "public", which denies nothing; use denylist (the mode that allows all but these), or leave the list out`)
	case ModeNoNetwork:
		p.fail(path, `denied_hosts does not go with the mode "no-network", which denies everything already; use denylist (the mode that allows all but these), or leave the list out`)
	}
}

// fields checks an object's members against the legal names, and reports
// unknown ones and duplicates. The first of duplicates is kept.
func (p *parser) fields(v value, path, what string, legal ...string) map[string]value {
	fields := make(map[string]value, len(v.members()))
	for _, m := range v.members() {
		if _, twice := fields[m.name]; twice {
			p.fail(at(path, m.name), "%s is written more than once in the same object; keep one", quote(m.name))
			continue
		}
		fields[m.name] = m.value
		known := false
		for _, l := range legal {
			known = known || l == m.name
		}
		if known {
			continue
		}
		message := fmt.Sprintf("%s is not a member of %s, which has %s", quote(m.name), what, strings.Join(legal, ", "))
		if meant, found := fieldMeant(m.name, legal); found {
			message += fmt.Sprintf("; write %q", meant)
		}
		p.fail(at(path, m.name), "%s", message)
	}
	return fields
}

func (p *parser) targets(v value, path string, denied bool) []Target {
	if v.kind != kindArray {
		advice := ""
		if v.kind == kindString {
			advice = fmt.Sprintf("; write [%s]", quote(v.text))
		}
		p.fail(path, "this is a list of targets, not %s%s", v.describe(), advice)
		return nil
	}
	if len(v.items()) == 0 {
		return nil
	}
	targets := make([]Target, 0, len(v.items()))
	for i, item := range v.items() {
		before := len(p.problems)
		t := p.target(item, path, i, denied)
		if len(p.problems) > before {
			continue
		}
		targets = append(targets, t)
		if !denied {
			p.warnTarget(t, path, i)
		}
	}
	return targets
}

// target reads one item. The item's path is made only where it is needed: there
// may be 100,000.
func (p *parser) target(v value, list string, i int, denied bool) Target {
	switch v.kind {
	case kindString:
		t, err := parseTarget(v.text)
		if err != nil {
			p.fail(atIndex(list, i), "%s", err)
		}
		return t
	case kindObject:
		return p.targetObject(v, atIndex(list, i), denied)
	case kindNull, kindBool, kindNumber, kindArray, kindOther:
	}
	p.fail(atIndex(list, i), `a target is a string ("pypi.org:443") or an object ({"host": "pypi.org", "port": 443}); this is %s`, v.describe())
	return Target{}
}

func (p *parser) targetObject(v value, path string, denied bool) Target {
	before := len(p.problems)
	fields := p.fields(v, path, "a target", fieldHost, fieldPort, fieldProtocol, fieldPrivate)
	t := p.host(fields, path)
	hostLegal := t != Target{}
	port, hasPort := fields[fieldPort]
	if hasPort {
		n := p.port(port, at(path, fieldPort))
		if hostLegal && t.Port != 0 {
			p.fail(path, "the port stands twice: %d in host and %s in port; keep one", t.Port, port.describe())
		}
		if t.Port == 0 {
			t.Port = n
		}
	}
	if protocol, found := fields[fieldProtocol]; found {
		t.Proto = p.protocol(protocol, at(path, fieldProtocol))
	}
	private, hasPrivate := fields[fieldPrivate]
	if hasPrivate && private.kind != kindBool {
		p.fail(at(path, fieldPrivate), "private is true or false; this is %s", private.describe())
		hasPrivate = false
	}
	if hasPrivate && hostLegal && !t.IsName() {
		p.fail(path, "private is for names: it lets a name resolve to private addresses; the address %s is allowed as it is written, so leave private out", quote(t.String()))
	}
	if !denied && hostLegal && t.IsName() && !hasPort && t.Port == 0 && (t.Proto == ProtocolUDP || t.Proto == ProtocolAny) {
		p.fail(path, `an allowed name with the protocol %q needs a port, such as "port": 123: UDP is opened to every address of the name, and only on that port`, t.Proto)
	}
	if len(p.problems) > before {
		return Target{}
	}
	t.setPrivate(hasPrivate, private.text == "true")
	return t
}

// setPrivate keeps what canonical prints: true on a name of more than one label
// always; anything else only beside a protocol, where the target is an object
// with the members that were written.
func (t *Target) setPrivate(written, private bool) {
	severalLabels := t.Wildcard || strings.IndexByte(t.Name, '.') >= 0
	t.Private = written && private && (severalLabels || t.Proto != ProtocolUnset)
	t.notPrivate = written && !private && t.Proto != ProtocolUnset
}

// host reads the host of a target object; the zero Target when it is at fault.
func (p *parser) host(fields map[string]value, path string) Target {
	host, found := fields[fieldHost]
	path = at(path, fieldHost)
	if !found {
		p.fail(path, `host is missing; a target names a host, such as {"host": "pypi.org", "port": 443}`)
		return Target{}
	}
	if host.kind != kindString {
		p.fail(path, "host is a string; this is %s", host.describe())
		return Target{}
	}
	t, err := parseTarget(host.text)
	if err != nil {
		p.fail(path, "%s", err)
	}
	return t
}

// port reads a JSON integer by its text: 443.0 and 4.43e2 are numbers, and not
// integers.
func (p *parser) port(v value, path string) uint16 {
	const legal = "a port is an integer from 1 to 65535"
	if v.kind != kindNumber {
		advice := ""
		if _, ok := parsePort(v.text); v.kind == kindString && ok {
			advice = fmt.Sprintf("; write %s without the quotes", v.text)
		}
		p.fail(path, "%s; this is %s%s", legal, v.describe(), advice)
		return 0
	}
	if n, ok := parsePort(v.text); ok {
		return n
	}
	advice := ""
	if whole, fraction, found := strings.Cut(v.text, "."); found && strings.Trim(fraction, "0") == "" {
		if n, ok := parsePort(whole); ok {
			advice = fmt.Sprintf("; write %d", n)
		}
	}
	if strings.Trim(v.text, "-0123456789") != "" {
		p.fail(path, "%s; %s is not an integer%s", legal, v.describe(), advice)
	} else {
		p.fail(path, "%s; %s is out of that range; leave port out to mean every port", legal, v.describe())
	}
	return 0
}

func (p *parser) protocol(v value, path string) TargetProtocol {
	const legal = `protocol is "tcp", "udp" or "any"`
	if v.kind != kindString {
		p.fail(path, "%s; this is %s", legal, v.describe())
		return ProtocolUnset
	}
	switch protocol := TargetProtocol(v.text); protocol {
	case ProtocolTCP, ProtocolUDP, ProtocolAny:
		return protocol
	}
	advice := ""
	switch strings.ToLower(v.text) {
	case "tcp", "udp", "any":
		advice = fmt.Sprintf("; write %q", strings.ToLower(v.text))
	case "all", "*", "both", "icmp", "ip", "tcp/udp", "tcp+udp", "tcp,udp":
		advice = `; write "any"`
	case "http", "https", "tls", "ssh", "ws", "wss", "h2", "grpc":
		advice = `; write "tcp"`
	case "quic", "http3", "h3", "dns", "ntp":
		advice = `; write "udp"`
	}
	p.fail(path, "%s; this is %s%s", legal, v.describe(), advice)
	return ProtocolUnset
}
