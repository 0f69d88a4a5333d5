package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
)

// TargetProtocol is the protocol of a target as it was written; empty when it
// was left out.
type TargetProtocol string

// The protocols that may be written.
const (
	ProtocolUnset TargetProtocol = ""
	ProtocolTCP   TargetProtocol = "tcp"
	ProtocolUDP   TargetProtocol = "udp"
	ProtocolAny   TargetProtocol = "any"
)

// Target is one entry of a list. Targets are comparable.
type Target struct {
	// Name is the normalised name, without "*." where Wildcard; empty for
	// address targets.
	Name string
	// Prefix is set for address targets; a single address is a /32 or /128.
	Prefix netip.Prefix
	Proto  TargetProtocol
	// Port 0 means every port.
	Port     uint16
	Wildcard bool
	// Private is as written, and dropped where it says nothing: on a name of one
	// label whose protocol was not written (see IsPrivate).
	Private bool
	// notPrivate says that private was written false beside a protocol: the
	// canonical object keeps the members that were written.
	notPrivate bool
}

// IsName says that the target is a name or a wildcard.
func (t Target) IsName() bool { return t.Name != "" }

// IsPrivate says that the target lets its name resolve to private addresses:
// private was written, or the name has one label.
func (t Target) IsPrivate() bool {
	return t.IsName() && (t.Private || !t.Wildcard && strings.IndexByte(t.Name, '.') < 0)
}

// WholeFamily says that the target covers every IPv4 or every IPv6 address.
func (t Target) WholeFamily() bool { return t.Prefix.IsValid() && t.Prefix.Bits() == 0 }

// String gives the canonical rule text: "*.example.com:443", "10.0.0.0/8",
// "[2001:db8::1]:443/udp", "db.corp.example private".
func (t Target) String() string {
	if t.Port == 0 && t.Proto == ProtocolUnset && !t.Private && !t.Wildcard && t.IsName() {
		return t.Name
	}
	var buffer [96]byte
	return string(t.appendRule(buffer[:0]))
}

func (t Target) appendRule(b []byte) []byte {
	b = t.appendHost(b, t.Port != 0)
	if t.Port != 0 {
		b = append(b, ':')
		b = strconv.AppendUint(b, uint64(t.Port), 10)
	}
	if t.Proto != ProtocolUnset {
		b = append(b, '/')
		b = append(b, t.Proto...)
	}
	if t.Private {
		b = append(b, " private"...)
	}
	return b
}

// appendHost writes the host; brackets are for an IPv6 one that a port follows.
func (t Target) appendHost(b []byte, brackets bool) []byte {
	if t.IsName() {
		if t.Wildcard {
			b = append(b, "*."...)
		}
		return append(b, t.Name...)
	}
	brackets = brackets && t.Prefix.Addr().Is6()
	if brackets {
		b = append(b, '[')
	}
	if t.Prefix.IsSingleIP() {
		b = t.Prefix.Addr().AppendTo(b)
	} else {
		b = t.Prefix.AppendTo(b)
	}
	if brackets {
		b = append(b, ']')
	}
	return b
}

// ParseTarget reads the string form of a target, as a list holds it or a flag
// gives it. The error is an Errors with one Problem whose path is empty.
func ParseTarget(s string) (Target, error) {
	t, err := parseTarget(s)
	if err != nil {
		return Target{}, Errors{{Message: err.Error()}}
	}
	return t, nil
}

// ParseAskTarget reads what explain takes: a name or address, a port (443 when
// left out), and "/tcp" or "/udp" ("/tcp" when left out). The error is an Errors
// as ParseTarget's.
func ParseAskTarget(s string) (Request, error) {
	fail := func(format string, args ...any) (Request, error) {
		return Request{}, Errors{{Message: fmt.Sprintf(format, args...)}}
	}
	r := Request{Kind: KindAsk, Port: 443}
	rest := s
	switch i := strings.LastIndexByte(s, '/'); {
	case i < 0 || strings.Contains(s, "://"):
	case s[i:] == "/tcp":
		rest = s[:i]
	case s[i:] == "/udp":
		rest, r.Protocol = s[:i], UDP
	}
	t, err := parseTarget(rest)
	if err != nil {
		return fail("%s", err)
	}
	switch {
	case t.Wildcard:
		return fail("%s is a pattern; ask about one name, such as %q", quote(s), "www."+t.Name)
	case t.Prefix.IsValid() && !t.Prefix.IsSingleIP():
		return fail("%s is a range; ask about one address of it, such as %q", quote(s), t.Prefix.Addr())
	}
	r.Name, r.Addr = t.Name, t.Prefix.Addr()
	if t.Port != 0 {
		r.Port = t.Port
	}
	return r, nil
}

// parseTarget reads HOST, HOST:PORT, and what looks like one and is not.
func parseTarget(s string) (Target, error) {
	if s == "" {
		return Target{}, errors.New("a target is empty; write a name, a wildcard (*.example.com), an address or a range")
	}
	if err := checkDelimiters(s); err != nil {
		return Target{}, err
	}
	host, port, err := splitPort(s)
	if err != nil {
		return Target{}, err
	}
	t, err := parseTargetHost(host, suffixOf(port))
	if err != nil {
		return Target{}, err
	}
	if port != "" {
		n, ok := parsePort(port[1:])
		if !ok {
			return Target{}, fmt.Errorf("%s has the port %s; a port is an integer from 1 to 65535, in decimal digits without sign or leading zero", quote(s), quote(port[1:]))
		}
		t.Port = n
	}
	return t, nil
}

// suffixOf is the port as a suggestion repeats it: where it is legal.
func suffixOf(port string) string {
	if port == "" {
		return ""
	}
	if _, ok := parsePort(port[1:]); !ok {
		return ""
	}
	return port
}

// checkDelimiters refuses what belongs to a URL, showing the bare host.
func checkDelimiters(s string) error {
	for _, r := range s {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			return fmt.Errorf("%s has white space or a control character%s", quote(s), bareHost(s))
		}
	}
	switch {
	case strings.Contains(s, "://"):
		return fmt.Errorf("%s has a scheme; a target is a host and a port, not a URL%s", quote(s), bareHost(s))
	case strings.HasPrefix(s, "//"):
		return fmt.Errorf("%s begins with //; a target is a host and a port, not a URL%s", quote(s), bareHost(s))
	case strings.IndexByte(s, '@') >= 0:
		return fmt.Errorf("%s has user information (what is before the @)%s", quote(s), bareHost(s))
	case strings.ContainsAny(s, "?#"):
		return fmt.Errorf("%s has a query or a fragment%s", quote(s), bareHost(s))
	}
	if host, path, found := strings.Cut(s, "/"); found && !isRangeTail(host, path) {
		return fmt.Errorf("%s has a path; every path of a host is reached alike%s", quote(s), bareHost(s))
	}
	return nil
}

// isRangeTail says that "/after" is (meant as) a prefix length: host looks like
// an address, after begins with a digit and holds nothing of a path.
func isRangeTail(host, after string) bool {
	host = strings.TrimPrefix(strings.TrimPrefix(host, "["), "*.")
	looksLikeAddress := strings.Count(host, ":") >= 2 || endsInNumber(host)
	return looksLikeAddress && strings.Trim(after, "0123456789.:]+-") == ""
}

// bareHost is the end of a message that shows the host that a URL names, with
// its port; nothing when there is none to show.
func bareHost(s string) string {
	bare := withoutSpace(s)
	scheme, after, hasScheme := strings.Cut(bare, "://")
	if hasScheme {
		bare = after
	}
	bare = strings.TrimPrefix(bare, "//")
	if i := strings.IndexAny(bare, "?#"); i >= 0 {
		bare = bare[:i]
	}
	if host, path, found := strings.Cut(bare, "/"); found && (hasScheme || !isRangeTail(host, path)) {
		bare = host
	}
	bare = bare[strings.LastIndexByte(bare, '@')+1:]
	if len(bare) >= len(s) {
		return "" // nothing was removed, so there is nothing better to show
	}
	t, err := parseTarget(bare)
	if err != nil {
		return ""
	}
	if port, known := map[string]string{"http": "80", "https": "443", "ws": "80", "wss": "443"}[strings.ToLower(scheme)]; hasScheme && known && t.Port == 0 {
		withPort := t
		n, _ := parsePort(port)
		withPort.Port = n
		return fmt.Sprintf("; write %q, or %q for that port alone", t, withPort)
	}
	return fmt.Sprintf("; write %q", t)
}

// withoutSpace is what was meant by a target with white space: all of it where
// the space stands at an end or beside a colon, its first word where not.
func withoutSpace(s string) string {
	words := strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	switch {
	case len(words) == 0:
		return ""
	case len(words) == 1, strings.HasSuffix(words[0], ":"), strings.HasPrefix(words[1], ":"):
		return strings.Join(words, "")
	}
	return words[0]
}

// splitPort parts a target into its host, in brackets where it has them, and
// ":port" or nothing.
func splitPort(s string) (host, port string, err error) {
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		switch {
		case end < 0:
			return "", "", fmt.Errorf("%s lacks the closing bracket of an IPv6 address", quote(s))
		case end == len(s)-1:
			return s, "", nil
		case s[end+1] == ':':
			return s[:end+1], s[end+1:], nil
		case s[end+1] == '/':
			bits, rest, _ := strings.Cut(s[end+2:], ":")
			if rest != "" {
				rest = ":" + rest
			}
			return "", "", fmt.Errorf("%s has the prefix length outside the brackets; write %q", quote(s), show(s[:end]+"/"+bits+"]"+rest))
		}
		return "", "", fmt.Errorf("%s has %s after the bracket; only :PORT may follow", quote(s), quote(s[end+1:]))
	}
	switch strings.Count(s, ":") {
	case 0:
		return s, "", nil
	case 1:
		i := strings.IndexByte(s, ':')
		return s[:i], s[i:], nil
	}
	return s, "", nil // IPv6 without brackets, hence without a port
}

// parsePort reads decimal digits without sign or leading zero, 1–65535.
func parsePort(s string) (uint16, bool) {
	if s == "" || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil
}

// parseTargetHost reads the host of a target: a name, a wildcard, an address or
// a range. suffix is the port, for suggestions.
func parseTargetHost(host, suffix string) (Target, error) {
	if strings.IndexByte(host, '*') >= 0 {
		return parseWildcard(host, suffix)
	}
	if strings.IndexByte(host, '/') >= 0 {
		prefix, err := parseRange(host, suffix)
		return Target{Prefix: prefix}, err
	}
	if host == "" {
		return Target{}, errors.New("a target has a port and no host; write HOST:PORT")
	}
	if strings.Count(host, ":") >= 2 || strings.HasPrefix(host, "[") {
		return parseTargetIPv6(host, suffix)
	}
	parsed, err := ParseHost(host)
	if err != nil {
		if ascii, asciiErr := toASCII(host); asciiErr == nil {
			if trimmed := strings.TrimSuffix(ascii, "."); endsInNumber(trimmed) && strings.IndexByte(trimmed, '-') < 0 {
				return Target{}, errors.New(disguiseMessage(trimmed, suffix))
			}
		}
		return Target{}, err
	}
	if parsed.Addr.IsValid() {
		return Target{Prefix: netip.PrefixFrom(parsed.Addr, parsed.Addr.BitLen())}, nil
	}
	return Target{Name: parsed.Name}, nil
}

func parseTargetIPv6(host, suffix string) (Target, error) {
	addr, err := parseIPv6(host)
	if err == nil {
		return Target{Prefix: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	if inner := strings.Trim(host, "[]"); inner != host && strings.IndexByte(inner, ':') < 0 {
		if t, nameErr := parseTargetHost(inner, suffix); nameErr == nil {
			return Target{}, fmt.Errorf("brackets are for IPv6 addresses; write %q", t.String()+suffix)
		}
	}
	last := strings.LastIndexByte(host, ':')
	if !strings.HasPrefix(host, "[") && strings.IndexByte(host, '%') < 0 {
		if addr, addrErr := netip.ParseAddr(host[:last]); addrErr == nil && addr.Is6() && suffixOf(host[last:]) != "" {
			return Target{}, fmt.Errorf("%s has a port and no brackets; write %q", quote(host), "["+addr.String()+"]"+host[last:])
		}
		if strings.Trim(host, "0123456789abcdefABCDEF:.") != "" {
			return Target{}, fmt.Errorf("%s has more than one colon and is not an IPv6 address; write HOST:PORT or an IPv6 address", quote(host))
		}
	}
	return Target{}, err
}

func parseWildcard(host, suffix string) (Target, error) {
	base, isWildcard := strings.CutPrefix(host, "*.")
	labels := strings.Split(host, ".")
	switch {
	case host == "*":
		advice := ""
		if suffix != "" {
			advice = fmt.Sprintf("; for that port of every host write %q and %q", "0.0.0.0/0"+suffix, "[::/0]"+suffix)
		}
		return Target{}, fmt.Errorf("%q is not a target: to let everything out use the mode %q, to let nothing out %q%s", host, ModePublic, ModeNoNetwork, advice)
	case host == "*.":
		return Target{}, fmt.Errorf("%q lacks the name below which everything is meant; write *.example.com", host)
	case isWildcard && strings.IndexByte(base, '*') < 0:
		// The name itself is judged below.
	default:
		last := 0
		for i, label := range labels {
			if strings.IndexByte(label, '*') >= 0 {
				last = i
			}
		}
		advice := ""
		if below := strings.Join(labels[last+1:], "."); below != "" {
			if _, err := parseWildcard("*."+below, ""); err == nil {
				advice = fmt.Sprintf("; write %q for every name below %s, or list the names", "*."+below+suffix, below)
			}
		}
		return Target{}, fmt.Errorf("%s is not a target: * stands only as the whole first label%s", quote(host), advice)
	}
	if strings.ContainsAny(base, "/:[]") {
		return Target{}, fmt.Errorf("%s puts *. before an address or a range; only names have names below them", quote(host))
	}
	parsed, err := ParseHost(base)
	if err != nil {
		return Target{}, err
	}
	if parsed.Addr.IsValid() {
		return Target{}, fmt.Errorf("%s puts *. before an address; only names have names below them; write %q, or a range such as %q",
			quote(host), parsed.Addr.String()+suffix, "203.0.113.0/24")
	}
	if len(parsed.Name)+2 > maxName {
		return Target{}, fmt.Errorf("%s is so long that no name fits below it; a name has at most %d characters", quote(host), maxName)
	}
	return Target{Name: parsed.Name, Wildcard: true}, nil
}
