package probe

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

const (
	refusedAtOnce = "refused at once"
	denied        = "refused at the connect, or denied in words by exeat"
)

// plainCases are what any program can try without a capability.
func plainCases() []Case {
	v4 := func(a *attempt) netip.Addr { return a.IPv4 }
	v6 := func(a *attempt) netip.Addr { return a.IPv6 }
	return []Case{
		{ID: "B01", Attack: "UDP", Expected: refusedAtOnce, try: udp(v4, udpPort)},
		{ID: "B01", Attack: "UDP to an IPv4 address by an IPv6 socket", Expected: refusedAtOnce, try: udp(mappedTo, udpPort)},
		{ID: "B01", Attack: "TCP", Expected: denied, try: tcp(v4, tcpPort)},
		{ID: "B01", Attack: "TCP to port 80", Expected: denied, try: tcp(v4, 80)},
		{ID: "B01", Attack: "TCP to an IPv4 address by an IPv6 socket", Expected: denied, try: tcp(mappedTo, tcpPort)},
		{ID: "B01", Attack: "broadcast", Expected: refusedAtOnce, try: broadcast},
		{ID: "B01", Attack: "multicast DNS", Expected: refusedAtOnce, try: multicast(netip.MustParseAddr("224.0.0.251"))},
		{ID: "B01", Attack: "multicast DNS by IPv6", Expected: refusedAtOnce, try: multicast(netip.MustParseAddr("ff02::fb"))},
		{ID: "B01", Attack: "UDP to the gateway", Expected: refusedAtOnce, try: udp(func(a *attempt) netip.Addr { return a.gateway4 }, udpPort)},
		{ID: "B01", Attack: "TCP to the gateway", Expected: denied, try: tcp(func(a *attempt) netip.Addr { return a.gateway4 }, tcpPort)},
		{ID: "B01", Attack: "the cloud's metadata service", Expected: denied, try: tcp(fixed("169.254.169.254"), 80)},
		{ID: "B02", Attack: "UDP by IPv6", Expected: refusedAtOnce, try: udp(v6, udpPort)},
		{ID: "B02", Attack: "TCP by IPv6", Expected: denied, try: tcp(v6, tcpPort)},
		{ID: "B02", Attack: "UDP to the gateway by IPv6", Expected: refusedAtOnce, try: udp(func(a *attempt) netip.Addr { return a.gateway6 }, udpPort)},
		{ID: "B03", Attack: "TCP Fast Open: data in the SYN", Expected: refusedAtOnce, try: fastOpen},
		{ID: "B03", Attack: "multipath TCP", Expected: refusedAtOnce, try: multipath},
		{ID: "B09", Attack: "a ping socket", Expected: refusedAtOnce, try: ping(v4)},
		{ID: "B09", Attack: "a ping socket by IPv6", Expected: refusedAtOnce, try: ping(v6)},
		{ID: "B12", Attack: "a source route through an allowed address", Expected: "a packet with options is refused", try: sourceRoute},
		{ID: "B13", Attack: "a redirected packet on a socket bound to a link", Expected: "nothing for 127.0.0.1 leaves on the link", try: boundToLink},
		{ID: "B20", Attack: "NAT64 (64:ff9b::/96)", Expected: denied, try: tcp(embedded("64:ff9b::", 12), 80)},
		{ID: "B20", Attack: "6to4 (2002::/16)", Expected: denied, try: tcp(embedded("2002::1", 2), 80)},
		{ID: "B20", Attack: "an IPv4-compatible address", Expected: denied, try: tcp(embedded("::", 12), 80)},
		{ID: "B20", Attack: "metadata by IPv6 (fd00:ec2::254)", Expected: denied, try: tcp(fixed("fd00:ec2::254"), 80)},
		{ID: "B20", Attack: "metadata (100.100.100.200)", Expected: denied, try: tcp(fixed("100.100.100.200"), 80)},
		{ID: "B20", Attack: "metadata (168.63.129.16)", Expected: denied, try: tcp(fixed("168.63.129.16"), 80)},
		{ID: "B22", Attack: "a denied connection that hangs", Expected: "the refusal comes within a second", try: hangs},
		{ID: "B23", Attack: "QUIC", Expected: refusedAtOnce, try: udp(v4, 443)},
		{ID: "B23", Attack: "QUIC by IPv6", Expected: refusedAtOnce, try: udp(v6, 443)},
	}
}

// fixed is an address that does not depend on anything.
func fixed(addr string) func(*attempt) netip.Addr {
	return func(*attempt) netip.Addr { return netip.MustParseAddr(addr) }
}

// mappedTo is the address to attack as an IPv6 socket names it.
func mappedTo(a *attempt) netip.Addr { return netip.AddrFrom16(a.IPv4.As16()) }

// embedded puts the IPv4 address at an offset of an IPv6 address.
func embedded(prefix string, at int) func(*attempt) netip.Addr {
	return func(a *attempt) netip.Addr {
		b := netip.MustParseAddr(prefix).As16()
		copy(b[at:], a.IPv4.AsSlice())
		return netip.AddrFrom16(b)
	}
}

// nowhere is the sight of an attack whose destination is not there. Where there
// is no link at all, that is what holds.
func (a *attempt) nowhere(what string) sight {
	if a.link == nil {
		return held("there is no link but lo")
	}
	return unproven("not tried", "this namespace has no "+what)
}

// udp sends a datagram from a connected socket, and waits for what comes of it.
func udp(to func(*attempt) netip.Addr, port uint16) func(*attempt) sight {
	return func(a *attempt) sight {
		addr := to(a)
		if !addr.IsValid() {
			return a.nowhere("default gateway")
		}
		return a.sent(a.datagram(netip.AddrPortFrom(addr, port), nil))
	}
}

// datagram sends the marker; prepare, where not nil, does something to the
// socket first.
func (a *attempt) datagram(to netip.AddrPort, prepare func(fd int) error) error {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	if err := a.towards(to, policy.UDP); err != nil {
		return err
	}
	return a.withSocket(family, unix.SOCK_DGRAM, 0, func(fd int) error {
		if err := wantRefusals(fd, family); err != nil {
			return err
		}
		if prepare != nil {
			if err := prepare(fd); err != nil {
				return err
			}
		}
		if err := unix.Connect(fd, sockaddr(to)); err != nil {
			return os.NewSyscallError("connect", err)
		}
		if _, err := unix.Write(fd, []byte(a.marker)); err != nil {
			return os.NewSyscallError("send", err)
		}
		return a.afterwards(fd, family)
	})
}

// wantRefusals has the socket keep the ICMP errors that it meets.
func wantRefusals(fd, family int) error {
	if family == unix.AF_INET6 {
		return setOption(fd, unix.SOL_IPV6, unix.IPV6_RECVERR, 1, "IPV6_RECVERR")
	}
	return setOption(fd, unix.SOL_IP, unix.IP_RECVERR, 1, "IP_RECVERR")
}

func broadcast(a *attempt) sight {
	if a.link == nil {
		return a.nowhere("link but lo")
	}
	return a.sent(a.datagram(netip.AddrPortFrom(broadcastOf(a.link), udpPort), func(fd int) error {
		return setOption(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1, "SO_BROADCAST")
	}))
}

// broadcastOf is the directed broadcast of the link's first IPv4 prefix.
func broadcastOf(link *net.Interface) netip.Addr {
	addrs, err := link.Addrs()
	if err == nil {
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() {
				continue
			}
			b := p.Addr().As4()
			for bit := p.Bits(); bit < 32; bit++ {
				b[bit/8] |= 0x80 >> (bit % 8)
			}
			return netip.AddrFrom4(b)
		}
	}
	return netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func multicast(group netip.Addr) func(*attempt) sight {
	return func(a *attempt) sight {
		if a.link == nil {
			return a.nowhere("link but lo")
		}
		return a.sent(a.datagram(netip.AddrPortFrom(group, 5353), func(fd int) error {
			if group.Is4() {
				mreq := &unix.IPMreqn{Ifindex: int32(a.link.Index)}
				return os.NewSyscallError("setsockopt(IP_MULTICAST_IF)", unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, mreq))
			}
			return setOption(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, a.link.Index, "IPV6_MULTICAST_IF")
		}))
	}
}

func fastOpen(a *attempt) sight {
	const tcpFastOpenNoCookie = 34
	to, inside := netip.AddrPortFrom(a.IPv4, tcpPort), false
	if err := a.towards(to, policy.TCP); err != nil {
		return a.sent(err)
	}
	err := a.withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
		if err := setOption(fd, unix.IPPROTO_TCP, tcpFastOpenNoCookie, 1, "TCP_FASTOPEN_NO_COOKIE"); err != nil {
			return err
		}
		err := unix.Sendto(fd, []byte(a.marker), unix.MSG_FASTOPEN|unix.MSG_DONTWAIT, sockaddr(to))
		inside = socketEndsHere(fd)
		if err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return os.NewSyscallError("sendto(MSG_FASTOPEN)", err)
		}
		return a.streamError(fd)
	})
	return a.connectedRaw(err, inside)
}

func multipath(a *attempt) sight {
	to, inside := netip.AddrPortFrom(a.IPv4, tcpPort), false
	if err := a.towards(to, policy.TCP); err != nil {
		return a.sent(err)
	}
	err := a.withSocket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, unix.IPPROTO_MPTCP, func(fd int) error {
		err := unix.Connect(fd, sockaddr(to))
		if err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return os.NewSyscallError("connect", err)
		}
		inside = socketEndsHere(fd)
		if err := a.streamError(fd); !errors.Is(err, errSilent) {
			return err
		}
		if _, err := unix.Write(fd, []byte(a.marker)); err != nil && !errors.Is(err, unix.EAGAIN) {
			return os.NewSyscallError("write", err)
		}
		return a.streamError(fd)
	})
	return a.connectedRaw(err, inside)
}

func ping(to func(*attempt) netip.Addr) func(*attempt) sight {
	return func(a *attempt) sight {
		addr := to(a)
		family, proto, request := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
		if addr.Is6() {
			family, proto, request = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
		}
		if err := a.towards(netip.AddrPortFrom(addr, 0), policy.ICMP); err != nil {
			return a.sent(err)
		}
		return a.sent(a.withSocket(family, unix.SOCK_DGRAM, proto, func(fd int) error {
			if err := wantRefusals(fd, family); err != nil {
				return err
			}
			b := append([]byte{request, 0, 0, 0, 0, 1, 0, 1}, a.marker...)
			if err := sendTo(fd, b, netip.AddrPortFrom(addr, 0)); err != nil {
				return err
			}
			return a.afterwards(fd, family)
		}))
	}
}

// sourceRoute names an allowed address and, as the next hop, the denied one. It
// takes no capability.
func sourceRoute(a *attempt) sight {
	first := a.Through
	if !first.IsValid() {
		first = a.IPv4 // nothing is allowed: then the option alone is tried
	}
	return a.sent(a.datagram(netip.AddrPortFrom(first, udpPort), func(fd int) error {
		option := append([]byte{131, 7, 4}, a.IPv4.AsSlice()...)
		return os.NewSyscallError("setsockopt(IP_OPTIONS)", unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, string(append(option, 0))))
	}))
}

// boundToLink sends what the rules redirect to 127.0.0.1 from a socket that keeps
// to another link (Linux 5.7 needs no capability for that).
func boundToLink(a *attempt) sight {
	if a.link == nil {
		return a.nowhere("link but lo")
	}
	err := a.datagram(netip.AddrPortFrom(a.IPv4, 53), func(fd int) error {
		return os.NewSyscallError("setsockopt(SO_BINDTODEVICE)", unix.BindToDevice(fd, a.link.Name))
	})
	var got *answered
	if errors.As(err, &got) {
		return unproven(got.Error(), "port 53 is exeat's own resolver's to answer")
	}
	return a.sent(err)
}
