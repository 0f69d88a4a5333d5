package probe

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The ports that attacks go to: one where a service could be, one where none is.
const (
	tcpPort = 22
	udpPort = 9999
)

// udpDatagram is a UDP header without a checksum, and the payload.
func udpDatagram(port uint16, payload string) []byte {
	b := binary.BigEndian.AppendUint16(nil, 0x270f)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return append(append(b, 0, 0), payload...)
}

// ipv4 is one packet; its parts are what attacks vary.
type ipv4 struct {
	proto    byte
	from, to netip.Addr
	options  []byte
	fragment uint16 // flags and offset
	payload  []byte
}

func (p ipv4) bytes() []byte {
	header := 20 + len(p.options)
	b := make([]byte, 20, header+len(p.payload))
	b[0] = byte(0x40 | header/4)
	binary.BigEndian.PutUint16(b[2:], uint16(header+len(p.payload)))
	binary.BigEndian.PutUint16(b[6:], p.fragment)
	b[8], b[9] = 64, p.proto
	copy(b[12:], p.from.AsSlice())
	copy(b[16:], p.to.AsSlice())
	b = append(b, p.options...)
	binary.BigEndian.PutUint16(b[10:], ^onesSum(b))
	return append(b, p.payload...)
}

// onesSum is the sum of RFC 1071.
func onesSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// sendRaw sends a whole IPv4 packet, header and all.
func (a *attempt) sendRaw(p ipv4) error {
	return a.withSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, func(fd int) error {
		return sendTo(fd, p.bytes(), netip.AddrPortFrom(p.to, 0))
	})
}

// rawSource is the address that a raw packet shows where the attack does not
// choose one.
func (a *attempt) rawSource() netip.Addr {
	if a.source4.IsValid() {
		return a.source4
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// arpPayload is an ARP request with the marker after it.
func (a *attempt) arpPayload() []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1}
	b = append(append(b, a.rawSource().AsSlice()...), 0, 0, 0, 0, 0, 0)
	gateway := a.gateway4
	if !gateway.IsValid() {
		gateway = a.IPv4
	}
	return append(append(b, gateway.AsSlice()...), a.marker...)
}
