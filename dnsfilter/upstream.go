package dnsfilter

import (
	"fmt"
	"net/netip"
	"strings"
)

// Upstream is a resolver that is asked: over UDP, and TCP where an answer is
// cut, or over TLS (RFC 7858).
type Upstream struct {
	Addr netip.AddrPort
	TLS  bool
	// ServerName is whom the certificate must name; empty means the address.
	ServerName string
}

// The ports of DNS (RFC 1035 section 4.2) and DNS over TLS (RFC 7858 section 3.1).
const (
	dnsPort = 53
	tlsPort = 853
)

// ParseUpstream reads "192.0.2.53", "192.0.2.53:53", "2001:db8::1",
// "[2001:db8::1]:53", "tls://192.0.2.53" and "tls://dns.example@192.0.2.53:853".
func ParseUpstream(s string) (Upstream, error) {
	var u Upstream
	rest, port := s, uint16(dnsPort)
	if scheme, after, found := strings.Cut(s, "://"); found {
		if scheme != "tls" {
			return Upstream{}, fmt.Errorf("upstream %q: scheme %q is not tls", s, scheme)
		}
		u.TLS, rest, port = true, after, tlsPort
		if name, addr, found := strings.Cut(after, "@"); found {
			if name == "" {
				return Upstream{}, fmt.Errorf("upstream %q: nothing before the @", s)
			}
			u.ServerName, rest = name, addr
		}
	}
	addr, err := parseAddrPort(rest, port)
	if err != nil {
		return Upstream{}, fmt.Errorf("upstream %q: want an address, with a port or without: %w", s, err)
	}
	u.Addr = addr
	return u, nil
}

func parseAddrPort(s string, port uint16) (netip.AddrPort, error) {
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		s = strings.TrimSuffix(inner, "]")
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), port), nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if ap.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("port 0")
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

// String gives the form that ParseUpstream reads.
func (u Upstream) String() string {
	switch {
	case !u.TLS:
		return u.Addr.String()
	case u.ServerName == "":
		return "tls://" + u.Addr.String()
	default:
		return "tls://" + u.ServerName + "@" + u.Addr.String()
	}
}
