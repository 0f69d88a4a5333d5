package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// String gives the word that targets and logs carry: tcp, udp or icmp.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case ICMP:
		return "icmp"
	}
	return "protocol-" + strconv.Itoa(int(p))
}

// MarshalText writes the word of String.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what String gives.
func (p *Protocol) UnmarshalText(text []byte) error {
	switch string(text) {
	case "tcp":
		*p = TCP
	case "udp":
		*p = UDP
	case "icmp":
		*p = ICMP
	default:
		if number, ok := strings.CutPrefix(string(text), "protocol-"); ok {
			if n, err := strconv.ParseUint(number, 10, 8); err == nil {
				*p = Protocol(n)
				return nil
			}
		}
		return fmt.Errorf("protocol %q: want tcp, udp or icmp", text)
	}
	return nil
}
