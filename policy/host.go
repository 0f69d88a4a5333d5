package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

const (
	maxName  = 253 // RFC 1035 section 2.3.4, as text without the trailing dot
	maxLabel = 63
)

// Host is a normalised name or an address: exactly one is set.
type Host struct {
	Name string
	Addr netip.Addr
}

// String gives the name, or the address without brackets.
func (h Host) String() string {
	if h.Name != "" {
		return h.Name
	}
	if h.Addr.IsValid() {
		return h.Addr.String()
	}
	return ""
}

// ParseHost reads what a person wrote: a name, converted by UTS #46 (lookup,
// non-transitional), or an address, an IPv6 one with or without brackets.
func ParseHost(s string) (Host, error) {
	ascii, err := toASCII(s)
	if err != nil {
		return Host{}, err
	}
	return ParseWireHost(ascii)
}

// ParseWireHost reads what a client sent (a DNS question, a server name, a Host
// without its port, a CONNECT authority without its port): ASCII only, or an
// address, an IPv6 one with or without brackets. An error means malformed.
// An IPv4-mapped address comes back as the IPv4 address.
func ParseWireHost(s string) (Host, error) {
	if strings.IndexByte(s, ':') >= 0 || strings.IndexByte(s, '[') >= 0 {
		addr, err := parseIPv6(s)
		if err != nil {
			return Host{}, err
		}
		return Host{Addr: addr}, nil
	}
	name, err := normaliseASCII(s)
	if err != nil {
		return Host{}, err
	}
	if !endsInNumber(name) {
		return Host{Name: name}, nil
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return Host{}, errors.New(disguiseMessage(name, ""))
	}
	return Host{Addr: addr}, nil
}

// parseIPv6 reads an IPv6 address, in brackets or bare.
func parseIPv6(s string) (netip.Addr, error) {
	inner := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		inner = s[1 : len(s)-1]
	}
	if strings.IndexByte(inner, '%') >= 0 {
		return netip.Addr{}, fmt.Errorf("%s has a zone, which means something on one machine only; leave out %q", quote(s), show(inner[strings.IndexByte(inner, '%'):]))
	}
	addr, err := netip.ParseAddr(inner)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is not an IPv6 address", quote(s))
	}
	if addr.Is4() {
		return netip.Addr{}, fmt.Errorf("brackets are for IPv6 addresses; write %q", addr)
	}
	return addr.Unmap(), nil
}

// toASCII converts what a person wrote to the form that goes over the wire. It
// leaves ASCII alone: the rest of the normaliser judges it, as it judges what
// clients send. UTS #46's own length and hyphen rules are off for the same
// reason (and `r3---sn.example` is a name that exists).
func toASCII(s string) (string, error) {
	if isASCII(s) {
		return s, nil
	}
	if !utf8.ValidString(s) {
		return "", fmt.Errorf("%s is not valid UTF-8", quote(s))
	}
	if len(s) > 4*maxName {
		return "", fmt.Errorf("%s is longer than the %d bytes of a name", quote(s), maxName)
	}
	profile := idna.New(
		idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(),
		idna.StrictDomainName(false), idna.CheckHyphens(false), idna.CheckJoiners(true), idna.VerifyDNSLength(false),
	)
	ascii, err := profile.ToASCII(s)
	if err != nil || !isASCII(ascii) {
		return "", fmt.Errorf("%s is not a domain name: it has characters that international names (UTS #46) may not have; write its ASCII form (xn--…)", quote(s))
	}
	if strings.ContainsAny(ascii, ":[]/@%") {
		// A look-alike of a delimiter must not become one.
		return "", fmt.Errorf("%s is not a domain name: it has a look-alike of one of : [ ] / @ %%", quote(s))
	}
	if plain := strings.TrimSuffix(ascii, "."); endsInNumber(plain) {
		advice := ""
		if meant := meantAddresses(plain); len(meant) > 0 {
			advice = fmt.Sprintf("; write %q", meant[0])
		}
		return "", fmt.Errorf("%s is an address in characters other than ASCII%s", quote(s), advice)
	}
	return ascii, nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// normaliseASCII lower-cases a name, drops one trailing dot and holds it to the
// grammar. It does not tell names from IPv4 addresses. It allocates only where
// there was an upper-case letter or an error.
func normaliseASCII(s string) (string, error) {
	name := strings.TrimSuffix(s, ".")
	if name == "" {
		return "", fmt.Errorf("the name %s is empty", quote(s))
	}
	if len(name) > maxName {
		return "", fmt.Errorf("%s is %d characters long; a name has at most %d", quote(s), len(name), maxName)
	}
	upper := false
	start := 0
	for i := 0; i <= len(name); i++ {
		if i == len(name) || name[i] == '.' {
			if err := checkLabel(s, name[start:i]); err != nil {
				return "", err
			}
			start = i + 1
			continue
		}
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
		case c >= 'A' && c <= 'Z':
			upper = true
		default:
			r, _ := utf8.DecodeRuneInString(name[i:])
			return "", fmt.Errorf("%s is not a name: it has %s; letters, digits, - and _ are legal", quote(s), strconv.QuoteRune(r))
		}
	}
	if upper {
		name = lowerASCII(name)
	}
	return name, nil
}

func checkLabel(whole, label string) error {
	switch {
	case label == "":
		return fmt.Errorf("%s is not a name: it has an empty label (two dots together, or one in front)", quote(whole))
	case len(label) > maxLabel:
		return fmt.Errorf("%s is not a name: the label %s is %d characters long; a label has at most %d", quote(whole), quote(label), len(label), maxLabel)
	case label[0] == '-' || label[len(label)-1] == '-':
		return fmt.Errorf("%s is not a name: the label %s may not begin or end with -", quote(whole), quote(label))
	}
	return nil
}

// lowerASCII lowers A–Z alone. (strings.ToLower turns the Kelvin sign into k.)
func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// endsInNumber says that the last label is all digits, or 0x and hex digits: then
// it is no name, for a resolver or a client may take it for an IPv4 address
// (https://url.spec.whatwg.org/#ends-in-a-number-checker).
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return false
	}
	if len(last) >= 2 && last[0] == '0' && (last[1] == 'x' || last[1] == 'X') {
		return strings.Trim(last[2:], "0123456789abcdefABCDEF") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// disguiseMessage explains why text, which ends in a number, is not an address,
// and which address inet_aton(3) would read in it. suffix is what follows it in
// the target (a port, a prefix length).
func disguiseMessage(text, suffix string) string {
	const rule = "is not a legal IPv4 address: write four decimal octets without leading zeros"
	meant := meantAddresses(text)
	if len(meant) == 0 {
		return fmt.Sprintf("%s %s, each 0–255 (and a name may not end in a number)", quote(text), rule)
	}
	for i, m := range meant {
		meant[i] = strconv.Quote(m + suffix)
	}
	return fmt.Sprintf("%s %s, %s", quote(text), rule, strings.Join(meant, " or, if the zeros meant octal, "))
}

// meantAddresses reads text as inet_aton(3) does: one to four parts, decimal,
// 0x-hexadecimal or 0-octal, the last filling the bytes that are left. Where a
// leading zero makes that differ from the plain decimal reading, the decimal one
// comes first: people pad, programs disguise.
func meantAddresses(text string) []string {
	var meant []string
	for _, octal := range []bool{false, true} {
		addr, ok := inetAton(text, octal)
		if ok && (len(meant) == 0 || meant[0] != addr) {
			meant = append(meant, addr)
		}
	}
	return meant
}

func inetAton(text string, octal bool) (string, bool) {
	parts := strings.Split(text, ".")
	if len(parts) > 4 {
		return "", false
	}
	var sum uint64
	for i, part := range parts {
		base, digits := 10, part
		switch {
		case len(part) >= 2 && (part[:2] == "0x" || part[:2] == "0X"):
			base, digits = 16, part[2:]
			if digits == "" {
				digits = "0"
			}
		case octal && len(part) > 1 && part[0] == '0':
			base = 8
		}
		n, err := strconv.ParseUint(digits, base, 32)
		if err != nil {
			return "", false
		}
		if i < len(parts)-1 {
			if n > 255 {
				return "", false
			}
			sum |= n << (24 - 8*i)
			continue
		}
		if n >= 1<<(8*(5-len(parts))) {
			return "", false
		}
		sum |= n
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}).String(), true
}
