//go:build linux

package proxy

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ip6tOriginalDst is IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h.
const ip6tOriginalDst = 80

// originalDst asks conntrack where a redirected connection was going
// (SO_ORIGINAL_DST). A connection that was not redirected went to the local
// address, which is the answer then: the caller refuses it.
func originalDst(fd int, peer netip.AddrPort) (netip.AddrPort, error) {
	// Never both: of an IPv6 connection the kernel would look up another one, which
	// it keeps in IPv4's place (127.0.0.6).
	of := originalDst4
	if peer.Addr().Is6() {
		of = originalDst6
	}
	dst, err := of(fd)
	switch err {
	case nil:
		return dst, nil
	case unix.ENOENT, unix.ENOPROTOOPT:
		// conntrack does not know it (or is not loaded): nobody redirected it.
		sa, err := unix.Getsockname(fd)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("local address: %w", err)
		}
		return sockaddrPort(sa), nil
	}
	return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
}

// sockaddrPort is sa, unmapped and without a zone; the zero AddrPort where it is
// none of IP.
func sockaddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func originalDst4(fd int) (netip.AddrPort, error) {
	var to unix.RawSockaddrInet6 // addrOf's; this one is of IPv4
	if errno := getOption(fd, unix.IPPROTO_IP, unix.SO_ORIGINAL_DST, &to); errno != 0 {
		return netip.AddrPort{}, errno
	}
	return addrOf(&to), nil
}

func originalDst6(fd int) (netip.AddrPort, error) {
	var to unix.RawSockaddrInet6
	if errno := getOption(fd, unix.IPPROTO_IPV6, ip6tOriginalDst, &to); errno != 0 {
		return netip.AddrPort{}, errno
	}
	return addrOf(&to), nil
}

// addrPort is the address of a TCP endpoint, unmapped and without a zone.
func addrPort(a net.Addr) (netip.AddrPort, error) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("address %v: want TCP", a)
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port()), nil
}
