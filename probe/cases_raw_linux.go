package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

const notWithoutRaw = "no raw socket without NET_RAW; with it, dropped"

// rawCases take NET_RAW: without it the socket is refused.
func rawCases() []Case {
	raw := func(id, attack string, try func(*attempt) error) Case {
		return Case{ID: id, Attack: attack, Expected: notWithoutRaw, try: func(a *attempt) sight { return a.sent(try(a)) }}
	}
	cases := []Case{
		raw("B04", "a raw first fragment", rawFragment(0x2000)),
		raw("B04", "a raw later fragment", rawFragment(0x2000|185)),
		raw("B10", "raw neighbour solicitation with data", rawICMPv6(135)),
		raw("B10", "raw router solicitation with data", rawICMPv6(133)),
		raw("B10", "a raw IGMP report with data", igmpReport),
		raw("B11", "UDP behind an IPv6 destination options header", behindExtension),
		raw("B12", "a raw source route", rawSourceRoute),
		raw("B14", "a spoofed source to a closed port of 127.0.0.1", spoofed(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 7)),
		raw("B14", "a spoofed source to a closed port of ours", spoofedToUs),
		raw("B14", "a spoofed source to our resolver", spoofed(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 53)),
		raw("B14", "a transparent socket with a foreign source", transparent),
		raw("B22", "a forged reset such as refusals send", forgedReset),
		raw("B07", "a UDP socket with a guessed mark", guessedMark),
		raw("B43", "a forged answer of the engine's DNS", forgedAnswer),
	}
	for _, p := range []struct {
		number int
		name   string
	}{
		{unix.IPPROTO_UDP, "UDP"},
		{unix.IPPROTO_ICMP, "ICMP"},
		{unix.IPPROTO_IGMP, "IGMP"},
		{unix.IPPROTO_GRE, "GRE"},
		{unix.IPPROTO_IPIP, "IPIP"},
		{unix.IPPROTO_IPV6, "6in4"},
		{unix.IPPROTO_SCTP, "SCTP"},
		{unix.IPPROTO_DCCP, "DCCP"},
		{unix.IPPROTO_ESP, "ESP"},
		{253, "protocol 253"},
	} {
		cases = append(cases, raw("B04", "raw "+p.name, rawProtocol(p.number)))
	}
	return append(of(OwnCapabilities, cases...),
		Case{ID: "B04", Attack: "an SCTP socket", Expected: refusedAtOnce, try: otherProtocol(unix.SOCK_STREAM, unix.IPPROTO_SCTP)},
		Case{ID: "B04", Attack: "a UDP-Lite socket", Expected: refusedAtOnce, try: otherProtocol(unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE)},
	)
}

func rawProtocol(proto int) func(*attempt) error {
	return func(a *attempt) error {
		payload := append([]byte{8, 0, 0, 0, 0, 40, 0, 0}, a.marker...)
		return a.sendRaw(ipv4{proto: byte(proto), from: a.rawSource(), to: a.IPv4, payload: payload})
	}
}

// otherProtocol sends by a protocol of the kernel's that takes no capability.
func otherProtocol(kind, proto int) func(*attempt) sight {
	return func(a *attempt) sight {
		if err := a.towards(netip.AddrPortFrom(a.IPv4, udpPort), policy.UDP); err != nil {
			return a.sent(err)
		}
		return a.sent(a.withSocket(unix.AF_INET, kind|unix.SOCK_NONBLOCK, proto, func(fd int) error {
			return sendTo(fd, []byte(a.marker), netip.AddrPortFrom(a.IPv4, udpPort))
		}))
	}
}

// rawFragment sends one fragment; a later one has no header of a transport.
func rawFragment(flags uint16) func(*attempt) error {
	return func(a *attempt) error {
		return a.sendRaw(ipv4{
			proto: unix.IPPROTO_UDP, from: a.rawSource(), to: a.IPv4, fragment: flags,
			payload: udpDatagram(udpPort, a.marker+"-padding"),
		})
	}
}

// rawICMPv6 sends neighbour discovery with the hop limit that it has, and the
// marker after it, to the router.
func rawICMPv6(typ byte) func(*attempt) error {
	return func(a *attempt) error {
		to := a.gateway6
		if !to.IsValid() {
			to = a.IPv6
		}
		return a.withSocket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, func(fd int) error {
			if err := setOption(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255, "IPV6_UNICAST_HOPS"); err != nil {
				return err
			}
			b := append([]byte{typ, 0, 0, 0, 0, 0, 0, 0}, to.AsSlice()...)
			return sendTo(fd, append(b, a.marker...), netip.AddrPortFrom(to, 0))
		})
	}
}

func igmpReport(a *attempt) error {
	group := netip.AddrFrom4([4]byte{224, 0, 0, 22})
	return a.sendRaw(ipv4{
		proto: unix.IPPROTO_IGMP, from: a.rawSource(), to: group,
		payload: append([]byte{0x22, 0, 0, 0, 0, 0, 0, 0}, a.marker...),
	})
}

// behindExtension hides UDP from rules that read the first next-header.
func behindExtension(a *attempt) error {
	return a.withSocket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_DSTOPTS, func(fd int) error {
		b := append([]byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}, udpDatagram(udpPort, a.marker)...)
		return sendTo(fd, b, netip.AddrPortFrom(a.IPv6, 0))
	})
}

func rawSourceRoute(a *attempt) error {
	first := a.Through
	if !first.IsValid() {
		first = a.IPv4
	}
	option := append([]byte{131, 7, 4}, a.IPv4.AsSlice()...)
	return a.sendRaw(ipv4{
		proto: unix.IPPROTO_UDP, from: a.rawSource(), to: first, options: append(option, 0),
		payload: udpDatagram(8443, a.marker),
	})
}

// spoofed makes the kernel answer the denied address with our payload.
func spoofed(to netip.Addr, port uint16) func(*attempt) error {
	return func(a *attempt) error {
		return a.sendRaw(ipv4{proto: unix.IPPROTO_UDP, from: a.IPv4, to: to, payload: udpDatagram(port, a.marker)})
	}
}

func spoofedToUs(a *attempt) error { return spoofed(a.rawSource(), 7)(a) }

// transparent sends from an address that is not ours.
func transparent(a *attempt) error {
	foreign := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 9}), 9)
	return a.withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
		if err := setOption(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1, "IP_TRANSPARENT"); err != nil {
			return err
		}
		if err := unix.Bind(fd, sockaddr(foreign)); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return sendTo(fd, []byte(a.marker), netip.AddrPortFrom(a.IPv4, udpPort))
	})
}

// forgedReset imitates what the rules let pass on loopback for the sake of quick
// refusals.
func forgedReset(a *attempt) error {
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, tcpPort)
	binary.BigEndian.PutUint16(tcp[2:], 40000)
	tcp[12], tcp[13] = 5<<4, 0x04
	return a.sendRaw(ipv4{proto: unix.IPPROTO_TCP, from: a.rawSource(), to: a.IPv4, payload: append(tcp, a.marker...)})
}

// guessedMark bears a mark as an engine's own sockets might (bypass B07).
func guessedMark(a *attempt) error {
	return a.datagram(netip.AddrPortFrom(a.IPv4, udpPort), func(fd int) error {
		return setOption(fd, unix.SOL_SOCKET, unix.SO_MARK, 0x70726f62, "SO_MARK")
	})
}

// engineDNS is where container engines answer DNS.
var engineDNS = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// forgedAnswer sends from the engine's DNS to one of our ports.
func forgedAnswer(a *attempt) error {
	d := udpDatagram(40000, a.marker)
	binary.BigEndian.PutUint16(d, 53)
	err := a.sendRaw(ipv4{proto: unix.IPPROTO_UDP, from: engineDNS, to: netip.AddrFrom4([4]byte{127, 0, 0, 1}), payload: d})
	if errors.Is(err, unix.EPERM) {
		return err
	}
	return fmt.Errorf("forge an answer of %s: %w", engineDNS, errors.Join(err, errSilent))
}
