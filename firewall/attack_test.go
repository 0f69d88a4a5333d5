package firewall

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/probe"
)

// agentAttack tries the cases of one row of the catalogue (package probe) with a
// marker as payload, and prints what it saw. The far side counts.
func agentAttack(args []string) error {
	row, marker := args[0], args[1]
	report, err := attack(marker, row)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report.Cases)
}

// agentAttacks tries the cases of every row that is about packets.
func agentAttacks(args []string) error {
	report, err := attack(args[0], packetRows()...)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report.Cases)
}

func attack(marker string, rows ...string) (probe.Report, error) {
	return probe.Run(context.Background(), probe.Options{IDs: rows, Marker: marker, Aim: probe.Aim{
		IPv4: netip.MustParseAddr(denied4), IPv6: netip.MustParseAddr(denied6), Through: netip.MustParseAddr(allowed4),
	}})
}

// packetRows are the rows whose cases send packets that a far side can count.
func packetRows() []string {
	return []string{"B01", "B02", "B03", "B04", "B05", "B07", "B08", "B09", "B10", "B11", "B12", "B13", "B14", "B15", "B17", "B19", "B22", "B23"}
}

// socket opens one, does things to it and sends the marker.
func withSocket(family, kind, proto int, f func(fd int) error) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	return errors.Join(f(fd), unix.Close(fd))
}

// ipv4UDP makes a datagram.
func ipv4UDP(from string, to netip.AddrPort) func(string) []byte {
	return func(marker string) []byte {
		return ipv4Packet(unix.IPPROTO_UDP, from, to.Addr().String(), udpDatagram(to.Port(), marker), nil, 0)
	}
}

func udpDatagram(port uint16, marker string) []byte {
	b := []byte{0x27, 0x0f, byte(port >> 8), byte(port), 0, byte(8 + len(marker)), 0, 0}
	return append(b, marker...)
}

func ipv4Packet(proto byte, from, to string, payload, options []byte, fragment uint16) []byte {
	header := 20 + len(options)
	b := make([]byte, 20, header+len(payload))
	b[0] = byte(0x40 | header/4)
	binary.BigEndian.PutUint16(b[2:], uint16(header+len(payload)))
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[8], b[9] = 64, proto
	copy(b[12:], netip.MustParseAddr(from).AsSlice())
	copy(b[16:], netip.MustParseAddr(to).AsSlice())
	b = append(b, options...)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	return append(b, payload...)
}
