//go:build linux

package proxy

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of the byte path go through RawSyscall: none of them can block
// (every descriptor is non-blocking), and a call that outlasts 20 µs, as a full
// splice does, would otherwise cost the scheduler taking the processor away from
// us and finding it again. The price is that the garbage collector waits for the
// call that is in progress.

// readInto reads what is there.
func readInto(fd int, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// sendFrom writes what there is room for. A closed peer is an error, not a signal.
func sendFrom(fd int, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
			syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// spliceBytes moves up to n bytes between a pipe and a socket inside the kernel
// (splice(2)).
func spliceBytes(from, to, n int) (int, syscall.Errno) {
	for {
		moved, _, errno := syscall.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n),
			unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if errno != syscall.EINTR {
			return int(moved), errno
		}
	}
}

// epollNow reads the events that are there, without waiting.
func epollNow(poll int, events []unix.EpollEvent) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(&events[0])),
			uintptr(len(events)), 0, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// acceptNow takes a connection that is there.
func acceptNow(listener int) (fd int, peer netip.AddrPort, errno syscall.Errno) {
	for {
		var from unix.RawSockaddrInet6 // the larger of the two families'
		size := uint32(unsafe.Sizeof(from))
		got, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&from)),
			uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		switch errno {
		case 0:
			return int(got), addrOf(&from), 0
		case syscall.EINTR, syscall.ECONNABORTED:
		default:
			return -1, netip.AddrPort{}, errno
		}
	}
}

// addrOf is the address of a peer, unmapped; the zero AddrPort where it has none.
func addrOf(from *unix.RawSockaddrInet6) netip.AddrPort {
	port := (*[2]byte)(unsafe.Pointer(&from.Port))
	at := binary.BigEndian.Uint16(port[:])
	switch from.Family {
	case unix.AF_INET:
		from4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(from))
		return netip.AddrPortFrom(netip.AddrFrom4(from4.Addr), at)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(from.Addr).Unmap(), at)
	}
	return netip.AddrPort{}
}

// connectNow begins a connection of a socket of to's family.
func connectNow(fd int, to netip.AddrPort) syscall.Errno {
	var sa unix.RawSockaddrInet6
	port := (*[2]byte)(unsafe.Pointer(&sa.Port)) // at the same place in both families
	binary.BigEndian.PutUint16(port[:], to.Port())
	size := unsafe.Sizeof(sa)
	if to.Addr().Is4() {
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sa))
		sa4.Family, sa4.Addr, size = unix.AF_INET, to.Addr().As4(), unsafe.Sizeof(*sa4)
	} else {
		sa.Family, sa.Addr = unix.AF_INET6, to.Addr().As16()
	}
	_, _, errno := syscall.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), size)
	return errno
}

// setOption sets a socket option that is a number.
func setOption(fd, level, name, value int) syscall.Errno {
	number := int32(value)
	_, _, errno := syscall.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&number)), unsafe.Sizeof(number), 0)
	return errno
}

// getOption reads a socket option that is an address.
func getOption(fd, level, name int, into *unix.RawSockaddrInet6) syscall.Errno {
	size := uint32(unsafe.Sizeof(*into))
	_, _, errno := syscall.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(into)), uintptr(unsafe.Pointer(&size)), 0)
	return errno
}

// finishSending half-closes a connection.
func finishSending(fd int) syscall.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
	return errno
}

// unsent says whether bytes are queued that the peer has not received (ioctl(2),
// SIOCOUTQ), or may be.
func unsent(fd int) bool {
	var n int32
	_, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCOUTQ, uintptr(unsafe.Pointer(&n)))
	return errno != 0 || n != 0
}

// disconnect resets a connected socket there and then: connect(2) to AF_UNSPEC
// throws the send queue away, sends the reset and leaves the socket closed, all
// under the socket's lock, so a call in progress on another thread sends nothing
// more either. It is what close(2) does under SO_LINGER 0, without giving up the
// descriptor, whose number another goroutine may still be using.
func disconnect(fd int) error {
	var unspecified [16]byte // sa_family 0
	_, _, errno := syscall.RawSyscall(syscall.SYS_CONNECT, uintptr(fd),
		uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified))
	if errno != 0 {
		return errno
	}
	return nil
}

// Abort resets a connection at once: what it had still to send is thrown away,
// and when it returns nothing more is sent, whatever another goroutine is doing
// with it. The connection must still be closed.
func Abort(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = disconnect(int(fd)) }); err != nil {
		return err
	}
	return failed
}
