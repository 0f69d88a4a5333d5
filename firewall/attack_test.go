package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// agentAttack carries out one way round of bypass.md with a marker as payload.
// What errors it meets does not matter: the far side counts.
func agentAttack(args []string) error {
	name, marker := args[0], args[1]
	for _, a := range attacks() {
		if a.name == name {
			return a.run(marker)
		}
	}
	return fmt.Errorf("no attack %q", name)
}

// agentAttacks carries out all of them in one process, since starting one takes
// longer. Their markers bear the prefix and their number.
func agentAttacks(args []string) error {
	for i, a := range attacks() {
		err := a.run(fmt.Sprintf("%s-%d-marker", args[0], i))
		fmt.Println(strings.ReplaceAll(fmt.Sprint(err), "\n", " "))
	}
	return nil
}

// attack is one case: it must leak without the rules and must not with them.
type attack struct {
	row, name string
	run       func(marker string) error
}

func attacks() []attack {
	udp4 := netip.MustParseAddrPort(denied4 + ":9999")
	udp6 := netip.MustParseAddrPort("[" + denied6 + "]:9999")
	list := []attack{
		{"B01", "plain UDP", sendUDP(denied4 + ":9999")},
		{"B01", "plain UDP by IPv6 (B02)", sendUDP("[" + denied6 + "]:9999")},
		{"B01", "a mapped IPv6 socket", mappedUDP(udp4)},
		{"B01", "plain TCP", sendTCP(denied4 + ":22")},
		{"B01", "plain TCP by IPv6", sendTCP("[" + denied6 + "]:22")},
		{"B01", "broadcast", broadcastUDP("198.51.100.255:9999")},
		{"B01", "multicast", sendUDP("224.0.0.251:5353")},
		{"B01", "multicast by IPv6", sendUDP("[ff02::fb%eth0]:5353")},
		{"B01", "the gateway", sendUDP(gateway4 + ":9999")},
		{"B03", "TCP Fast Open data in a SYN", fastOpen(denied4, 22)},
		{"B03", "multipath TCP", multipath(denied4, 22)},
		{"B05", "a packet socket", packetSocket(ipv4UDP(sandboxV4, udp4), unix.ETH_P_IP, 0)},
		{"B05", "a packet socket past the queueing discipline", packetSocket(ipv4UDP(sandboxV4, udp4), unix.ETH_P_IP, unix.PACKET_QDISC_BYPASS)},
		{"B05", "an odd ethertype", packetSocket(plainPayload, 0x88b5, 0)},
		{"B05", "a VLAN tag", packetSocket(func(m string) []byte { return append([]byte{0, 7, 0x88, 0xb5}, m...) }, unix.ETH_P_8021Q, 0)},
		{"B08", "an ARP payload", packetSocket(arpPayload, unix.ETH_P_ARP, 0)},
		{"B09", "a ping socket", pingSocket(denied4)},
		{"B09", "a ping socket by IPv6", pingSocket(denied6)},
		{"B10", "raw neighbour discovery with data", rawICMPv6(135)},
		{"B10", "raw router solicitation with data", rawICMPv6(133)},
		{"B11", "an IPv6 extension header", extensionHeader(udp6)},
		{"B12", "a source route through an allowed address", sourceRoute},
		{"B13", "a redirect bound to the device", boundUDP(denied4+":53", "eth0")},
		{"B14", "a spoofed source to a closed port", spoofed(denied4, "127.0.0.1")},
		{"B14", "a spoofed source to an address of ours", spoofed(denied4, sandboxV4)},
		{"B14", "a transparent socket with a foreign source", transparentUDP},
		{"B17", "a foreign destination on loopback", packetOn("lo", ipv4UDP(sandboxV4, udp4))},
		{"B15", "forwarding what is put on loopback", packetOn("lo", ipv4UDP("10.9.9.9", udp4))},
		{"B22", "a reset of our own making", rawTCPReset},
		{"B07", "a packet socket with a guessed mark", markedPacket(ipv4UDP(sandboxV4, udp4), int(ProbeMark))},
		{"B07", "a UDP socket with the probe's mark", markedUDP(denied4+":9999", int(ProbeMark))},
	}
	for _, p := range []int{unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_GRE, unix.IPPROTO_IPIP, unix.IPPROTO_IPV6, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_ESP, 253} {
		list = append(list, attack{"B04", fmt.Sprintf("raw IP protocol %d", p), rawIP(p)})
	}
	return append(list, attack{"B04", "an IPv4 fragment", rawFragment})
}

func sendUDP(address string) func(string) error {
	return func(marker string) error {
		c, err := net.Dial("udp", address)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(marker))
		return err
	}
}

func sendTCP(address string) func(string) error {
	return func(marker string) error { return agentConnect([]string{address, marker}) }
}

// socket opens one, does things to it and sends the marker.
func withSocket(family, kind, proto int, f func(fd int) error) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	return errors.Join(f(fd), unix.Close(fd))
}

func mappedUDP(to netip.AddrPort) func(string) error {
	return func(marker string) error {
		return withSocket(unix.AF_INET6, unix.SOCK_DGRAM, 0, func(fd int) error {
			return unix.Sendto(fd, []byte(marker), 0, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
		})
	}
}

func broadcastUDP(address string) func(string) error {
	to := netip.MustParseAddrPort(address)
	return func(marker string) error {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.Sendto(fd, []byte(marker), 0, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
		})
	}
}

func boundUDP(address, device string) func(string) error {
	to := netip.MustParseAddrPort(address)
	return func(marker string) error {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
			return errors.Join(unix.BindToDevice(fd, device),
				unix.Sendto(fd, []byte(marker), 0, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
		})
	}
}

func markedUDP(address string, mark int) func(string) error {
	to := netip.MustParseAddrPort(address)
	return func(marker string) error {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark),
				unix.Sendto(fd, []byte(marker), 0, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
		})
	}
}

func fastOpen(address string, port int) func(string) error {
	return func(marker string) error {
		return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
			// 30: TCP_FASTOPEN_CONNECT; 34: TCP_FASTOPEN_NO_COOKIE.
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, 34, 1),
				unix.Sendto(fd, []byte(marker), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(address).As4()}))
		})
	}
}

func multipath(address string, port int) func(string) error {
	return func(marker string) error {
		return withSocket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, func(fd int) error {
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(address).As4()}); err != nil {
				return err
			}
			_, err := unix.Write(fd, []byte(marker))
			return err
		})
	}
}

func plainPayload(marker string) []byte { return []byte(marker) }

// packetSocket sends a frame on eth0 to the gateway's hardware address.
func packetSocket(payload func(string) []byte, ethertype uint16, option int) func(string) error {
	return func(marker string) error { return sendFrame("eth0", payload(marker), ethertype, option, 0) }
}

func packetOn(device string, payload func(string) []byte) func(string) error {
	return func(marker string) error { return sendFrame(device, payload(marker), unix.ETH_P_IP, 0, 0) }
}

func markedPacket(payload func(string) []byte, mark int) func(string) error {
	return func(marker string) error { return sendFrame("eth0", payload(marker), unix.ETH_P_IP, 0, mark) }
}

func sendFrame(device string, payload []byte, ethertype uint16, option, mark int) error {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	return withSocket(unix.AF_PACKET, unix.SOCK_RAW, 0, func(fd int) error {
		if option != 0 {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1); err != nil {
				return err
			}
		}
		if mark != 0 {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
				return err
			}
		}
		frame := []byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1}
		if device == "lo" {
			frame = make([]byte, 12)
		}
		frame = append(binary.BigEndian.AppendUint16(frame, ethertype), payload...)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: htons(ethertype)})
	})
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

func arpPayload(marker string) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 198, 51, 100, 2, 0, 0, 0, 0, 0, 0, 198, 51, 100, 1}
	return append(b, marker...)
}

func pingSocket(address string) func(string) error {
	a := netip.MustParseAddr(address)
	return func(marker string) error {
		if a.Is4() {
			return withSocket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, func(fd int) error {
				return unix.Sendto(fd, append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, marker...), 0, &unix.SockaddrInet4{Addr: a.As4()})
			})
		}
		return withSocket(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6, func(fd int) error {
			return unix.Sendto(fd, append([]byte{128, 0, 0, 0, 0, 1, 0, 1}, marker...), 0, &unix.SockaddrInet6{Addr: a.As16()})
		})
	}
}

// rawICMPv6 sends neighbour discovery with the right hop limit, and the marker
// after it.
func rawICMPv6(typ byte) func(string) error {
	return func(marker string) error {
		return withSocket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, func(fd int) error {
			b := append([]byte{typ, 0, 0, 0, 0, 0, 0, 0}, netip.MustParseAddr(gateway6).AsSlice()...)
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255),
				unix.Sendto(fd, append(b, marker...), 0, &unix.SockaddrInet6{Addr: netip.MustParseAddr(gateway6).As16()}))
		})
	}
}

// extensionHeader sends UDP behind a destination options header.
func extensionHeader(to netip.AddrPort) func(string) error {
	return func(marker string) error {
		return withSocket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_DSTOPTS, func(fd int) error {
			b := append([]byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}, udpDatagram(to.Port(), marker)...)
			return unix.Sendto(fd, b, 0, &unix.SockaddrInet6{Addr: to.Addr().As16()})
		})
	}
}

// sourceRoute names an allowed address first and a denied one after it.
func sourceRoute(marker string) error {
	option := append([]byte{131, 7, 4}, netip.MustParseAddr(denied4).AsSlice()...)
	return sendRaw(allowed4, ipv4Packet(unix.IPPROTO_UDP, sandboxV4, allowed4, udpDatagram(8443, marker), append(option, 0), 0))
}

func sendRaw(to string, packet []byte) error {
	return withSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, func(fd int) error {
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(to).As4()})
	})
}

func rawIP(proto int) func(string) error {
	return func(marker string) error {
		return sendRaw(denied4, ipv4Packet(byte(proto), sandboxV4, denied4, append([]byte{8, 0, 0, 0, 0, 40, 0, 0}, marker...), nil, 0))
	}
}

func rawFragment(marker string) error {
	return sendRaw(denied4, ipv4Packet(unix.IPPROTO_UDP, sandboxV4, denied4, udpDatagram(9999, marker+"-padding"), nil, 0x2000))
}

// spoofed makes the kernel answer a foreign address with our payload.
func spoofed(from, to string) func(string) error {
	return func(marker string) error {
		return sendRaw(to, ipv4Packet(unix.IPPROTO_UDP, from, to, udpDatagram(7, marker), nil, 0))
	}
}

func transparentUDP(marker string) error {
	return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Port: 9, Addr: netip.MustParseAddr("10.9.9.9").As4()}),
			unix.Sendto(fd, []byte(marker), 0, &unix.SockaddrInet4{Port: 9999, Addr: netip.MustParseAddr(denied4).As4()}))
	})
}

// rawTCPReset forges the reset that our rules let pass on loopback.
func rawTCPReset(marker string) error {
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, 22)
	binary.BigEndian.PutUint16(tcp[2:], 40000)
	tcp[12], tcp[13] = 5<<4, 0x04
	return sendRaw(denied4, ipv4Packet(unix.IPPROTO_TCP, sandboxV4, denied4, append(tcp, marker...), nil, 0))
}
