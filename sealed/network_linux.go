package sealed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/exeat/exeat/firewall"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// loopback is the index of lo, the first link of every network namespace.
const loopback = 1

// configureLoopback brings lo up with the sandbox's addresses and routes
// everything to it. It says whether there is IPv6 here.
func configureLoopback() (ipv6 bool, err error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return false, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()

	up := make([]byte, unix.SizeofIfInfomsg)
	put32(up[4:], loopback)
	put32(up[8:], unix.IFF_UP)
	put32(up[12:], unix.IFF_UP)
	if err := ask(c, unix.RTM_NEWLINK, up); err != nil {
		return false, fmt.Errorf("bring lo up: %w", err)
	}
	if err := addAddress(c, AddressIPv4); err != nil {
		return false, err
	}
	// A kernel without IPv6, or with it disabled, has nothing to guard there.
	switch err := addAddress(c, AddressIPv6); {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EACCES), errors.Is(err, unix.EADDRNOTAVAIL):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

// addAddress gives lo the address and a default route that prefers it as source.
func addAddress(c *netlink.Conn, a netip.Addr) error {
	family := byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	addr := make([]byte, unix.SizeofIfAddrmsg)
	addr[0], addr[1] = family, byte(a.BitLen())
	// No duplicate address detection: the address must be usable at once.
	addr[2] = unix.IFA_F_NODAD
	put32(addr[4:], loopback)
	if err := ask(c, unix.RTM_NEWADDR, addr,
		netlink.Attribute{Type: unix.IFA_LOCAL, Data: a.AsSlice()},
		netlink.Attribute{Type: unix.IFA_ADDRESS, Data: a.AsSlice()},
	); err != nil {
		return fmt.Errorf("give lo the address %s: %w", a, err)
	}
	route := make([]byte, unix.SizeofRtMsg)
	route[0] = family
	route[4], route[5], route[6], route[7] = unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST
	out := make([]byte, 4)
	put32(out, loopback)
	if err := ask(c, unix.RTM_NEWROUTE, route,
		netlink.Attribute{Type: unix.RTA_OIF, Data: out},
		netlink.Attribute{Type: unix.RTA_PREFSRC, Data: a.AsSlice()},
	); err != nil {
		return fmt.Errorf("route everything to lo from %s: %w", a, err)
	}
	return nil
}

func ask(c *netlink.Conn, typ netlink.HeaderType, fixed []byte, attrs ...netlink.Attribute) error {
	b, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return err
	}
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request | netlink.Acknowledge | netlink.Create},
		Data:   append(fixed, b...),
	})
	return err
}

// handout is the descriptors for the engine, each with its name.
type handout struct {
	names []string
	fds   []int
}

func (h *handout) add(name string, fd int) {
	h.names = append(h.names, name)
	h.fds = append(h.fds, fd)
}

// openListeners makes the listeners of both families and the netlink sockets.
// Ports are the kernel's choice, and high; SO_REUSEADDR is never set, so that
// nobody can bind beside us (bypass B35).
func openListeners(ipv6 bool) (handout, error) {
	var h handout
	wanted := []struct {
		typ    int
		v4, v6 string
	}{
		{unix.SOCK_STREAM, fileTransparent4, fileTransparent6},
		{unix.SOCK_STREAM, fileExplicit4, fileExplicit6},
		{unix.SOCK_DGRAM, fileDNSUDP4, fileDNSUDP6},
		{unix.SOCK_STREAM, fileDNSTCP4, fileDNSTCP6},
	}
	for _, w := range wanted {
		fd, err := listen(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, unix.AF_INET, w.typ)
		if err != nil {
			return h, fmt.Errorf("%s: %w", w.v4, err)
		}
		h.add(w.v4, fd)
		if !ipv6 {
			continue
		}
		if fd, err = listen(&unix.SockaddrInet6{Addr: [16]byte{15: 1}}, unix.AF_INET6, w.typ); err != nil {
			return h, fmt.Errorf("%s: %w", w.v6, err)
		}
		h.add(w.v6, fd)
	}
	for _, name := range []string{fileRules, fileLog} {
		f, err := firewall.NetlinkSocket()
		if err != nil {
			return h, fmt.Errorf("%s: %w", name, err)
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return h, errors.Join(os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err), f.Close())
		}
		h.add(name, fd)
		if err := f.Close(); err != nil {
			return h, err
		}
	}
	return h, nil
}

// backlog is what Linux allows by default (net.core.somaxconn).
const backlog = 4096

func listen(at unix.Sockaddr, family, typ int) (int, error) {
	fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, at); err != nil {
		return -1, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	if typ == unix.SOCK_DGRAM {
		return fd, nil
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return -1, errors.Join(os.NewSyscallError("listen", err), unix.Close(fd))
	}
	return fd, nil
}

func put32(b []byte, v uint32) { binary.NativeEndian.PutUint32(b, v) }
