package policy

import "strconv"

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
