package firewall

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

func past() time.Time { return time.Unix(1, 0) }

// packet is what the log reads off a packet's headers.
type packet struct {
	src, dst     netip.Addr
	proto        uint8
	sport, dport uint16
}

// etherHeader is two addresses and a type (IEEE 802.3).
const etherHeader = 14

// parseFrame reads a frame as netdev chains log it.
func parseFrame(b []byte) (packet, bool) {
	if len(b) < etherHeader {
		return packet{}, false
	}
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_IP, unix.ETH_P_IPV6:
		return parsePacket(b[etherHeader:])
	}
	return packet{}, false
}

// parsePacket reads an IPv4 or IPv6 packet, of which only the beginning may be
// there. It is written by an attacker.
func parsePacket(b []byte) (packet, bool) {
	if len(b) == 0 {
		return packet{}, false
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b)
	case 6:
		return parseIPv6(b)
	}
	return packet{}, false
}

// parseIPv4 reads RFC 791 section 3.1.
func parseIPv4(b []byte) (packet, bool) {
	header := int(b[0]&0x0f) * 4
	if header < 20 || len(b) < 20 {
		return packet{}, false
	}
	p := packet{src: netip.AddrFrom4([4]byte(b[12:16])), dst: netip.AddrFrom4([4]byte(b[16:20])), proto: b[9]}
	firstFragment := binary.BigEndian.Uint16(b[6:])&0x1fff == 0
	if firstFragment && len(b) >= header {
		p.ports(b[header:])
	}
	return p, true
}

// parseIPv6 reads RFC 8200 section 3 and walks over at most eight extension
// headers (section 4).
func parseIPv6(b []byte) (packet, bool) {
	const header = 40
	if len(b) < header {
		return packet{}, false
	}
	p := packet{src: netip.AddrFrom16([16]byte(b[8:24])), dst: netip.AddrFrom16([16]byte(b[24:40])), proto: b[6]}
	rest := b[header:]
	for range 8 {
		var length int
		switch p.proto {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			if len(rest) < 2 {
				return p, true
			}
			length = (int(rest[1]) + 1) * 8
		case unix.IPPROTO_FRAGMENT:
			length = 8
			if len(rest) >= 4 && binary.BigEndian.Uint16(rest[2:])&0xfff8 != 0 {
				p.proto = rest[0]
				return p, true
			}
		default:
			p.ports(rest)
			return p, true
		}
		if len(rest) < length {
			return p, true
		}
		p.proto, rest = rest[0], rest[length:]
	}
	return p, true
}

// ports reads the ports of TCP and UDP, and of an ICMP echo its identifier, which
// stands for the sender's port (RFC 792, RFC 4443 section 4.1).
func (p *packet) ports(b []byte) {
	switch {
	case (p.proto == unix.IPPROTO_TCP || p.proto == unix.IPPROTO_UDP) && len(b) >= 4:
		p.sport, p.dport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	case (p.proto == unix.IPPROTO_UDPLITE || p.proto == unix.IPPROTO_SCTP) && len(b) >= 2:
		p.sport = binary.BigEndian.Uint16(b)
	case p.proto == unix.IPPROTO_ICMP && len(b) >= 6 && b[0] == 8, p.proto == unix.IPPROTO_ICMPV6 && len(b) >= 6 && b[0] == 128:
		p.sport = binary.BigEndian.Uint16(b[4:])
	}
}
