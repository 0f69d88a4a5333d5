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
func originalDst(conn *net.TCPConn) (netip.AddrPort, error) {
	local, err := addrPort(conn.LocalAddr())
	if err != nil {
		return netip.AddrPort{}, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	}
	var dst netip.AddrPort
	var optErr error
	err = raw.Control(func(fd uintptr) {
		if local.Addr().Is4() {
			dst, optErr = originalDst4(int(fd))
		} else {
			dst, optErr = originalDst6(int(fd))
		}
	})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	}
	switch optErr {
	case nil:
		return dst, nil
	case unix.ENOENT, unix.ENOPROTOOPT:
		// conntrack does not know it (or is not loaded): nobody redirected it.
		return local, nil
	}
	return netip.AddrPort{}, fmt.Errorf("original destination: %w", optErr)
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
