//go:build linux

package proxy

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ip6tOriginalDst is IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h.
const ip6tOriginalDst = 80

// originalDst asks conntrack where a redirected connection was going
// (SO_ORIGINAL_DST). A connection that was not redirected went to the local
// address, which is the answer then: the caller refuses it.
func originalDst(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("local address: %w", err)
	}
	local := sockaddrPort(sa)
	var dst netip.AddrPort
	if local.Addr().Is4() {
		dst, err = originalDst4(fd)
	} else {
		dst, err = originalDst6(fd)
	}
	switch err {
	case nil:
		return dst, nil
	case unix.ENOENT, unix.ENOPROTOOPT:
		// conntrack does not know it (or is not loaded): nobody redirected it.
		return local, nil
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
	// An IPv6Mreq is the smallest type with a getsockopt of its own that has room
	// for the 16 bytes of a sockaddr_in.
	m, err := unix.GetsockoptIPv6Mreq(fd, unix.IPPROTO_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := m.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}

func originalDst6(fd int) (netip.AddrPort, error) {
	// An IPv6MTUInfo begins with the sockaddr_in6 that we are after.
	i, err := unix.GetsockoptIPv6MTUInfo(fd, unix.IPPROTO_IPV6, ip6tOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := (*[2]byte)(unsafe.Pointer(&i.Addr.Port))
	return netip.AddrPortFrom(netip.AddrFrom16(i.Addr.Addr).Unmap(), binary.BigEndian.Uint16(port[:])), nil
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
