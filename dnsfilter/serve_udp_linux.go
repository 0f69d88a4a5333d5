package dnsfilter

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// newBatcher moves conn's datagrams by calls that the scheduler is not told of:
// none can block, and one that outlasts 20 µs, as sending a whole batch does, would
// cost it more than the datagrams. Who sent a datagram stays as the kernel wrote it
// until somebody asks.
func newBatcher(conn net.PacketConn) batcher {
	udp, ok := conn.(*net.UDPConn)
	if !ok {
		return newPlainBatcher(conn)
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return newPlainBatcher(conn)
	}
	return &rawBatcher{raw: raw}
}

// mmsghdr is struct mmsghdr of linux/socket.h.
type mmsghdr struct {
	unix.Msghdr
	n uint32
}

// rawBatcher calls recvmmsg(2) and sendmmsg(2).
type rawBatcher struct {
	raw     syscall.RawConn
	headers [udpBatch]mmsghdr
	vectors [udpBatch]unix.Iovec
	from    [udpBatch]sender
}

// sender is a sockaddr, as a net.Addr.
type sender struct {
	sa   unix.RawSockaddrInet6 // the larger of the two families'
	size uint32
}

// ReadBatch waits for datagrams. Their Addr is good until the next call.
func (b *rawBatcher) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	ms = ms[:min(len(ms), udpBatch)]
	for i := range ms {
		buffer := ms[i].Buffers[0]
		b.prepare(i, buffer, &b.from[i], uint32(unsafe.Sizeof(b.from[i].sa)))
	}
	var n int
	var errno syscall.Errno
	err := b.raw.Read(func(fd uintptr) bool {
		n, errno = b.call(unix.SYS_RECVMMSG, fd, len(ms))
		return errno != unix.EAGAIN
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("recvmmsg", errno)
	}
	if err != nil {
		return 0, err
	}
	for i := range n {
		ms[i].N = int(b.headers[i].n)
		b.from[i].size = b.headers[i].Namelen
		ms[i].Addr = &b.from[i]
	}
	return n, nil
}

// WriteBatch sends datagrams; how many were sent comes with an error, too.
func (b *rawBatcher) WriteBatch(ms []ipv4.Message, _ int) (int, error) {
	ms = ms[:min(len(ms), udpBatch)]
	for i := range ms {
		to, ok := ms[i].Addr.(*sender)
		if !ok {
			return 0, errors.New("not a sender of ours")
		}
		b.prepare(i, ms[i].Buffers[0], to, to.size)
	}
	var n int
	var errno syscall.Errno
	err := b.raw.Write(func(fd uintptr) bool {
		n, errno = b.call(unix.SYS_SENDMMSG, fd, len(ms))
		return errno != unix.EAGAIN
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("sendmmsg", errno)
	}
	return n, err
}

func (b *rawBatcher) prepare(i int, buffer []byte, who *sender, size uint32) {
	b.vectors[i].Base = unsafe.SliceData(buffer)
	b.vectors[i].SetLen(len(buffer))
	h := &b.headers[i].Msghdr
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&who.sa)), size
	h.Iov = &b.vectors[i]
	h.SetIovlen(1)
}

func (b *rawBatcher) call(number, fd uintptr, n int) (int, syscall.Errno) {
	for {
		done, _, errno := syscall.RawSyscall6(number, fd, uintptr(unsafe.Pointer(&b.headers[0])), uintptr(n),
			unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(done), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// Network implements net.Addr.
func (s *sender) Network() string { return "udp" }

// String implements net.Addr.
func (s *sender) String() string { return s.addrPort().String() }

// addrPort is the sender's address; the zero AddrPort where it has none.
func (s *sender) addrPort() netip.AddrPort {
	port := (*[2]byte)(unsafe.Pointer(&s.sa.Port)) // at the same place in both families
	at := uint16(port[0])<<8 | uint16(port[1])
	switch s.sa.Family {
	case unix.AF_INET:
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.sa))
		return netip.AddrPortFrom(netip.AddrFrom4(sa4.Addr), at)
	case unix.AF_INET6:
		addr := netip.AddrFrom16(s.sa.Addr)
		if s.sa.Scope_id != 0 {
			if link, err := net.InterfaceByIndex(int(s.sa.Scope_id)); err == nil {
				addr = addr.WithZone(link.Name)
			}
		}
		return netip.AddrPortFrom(addr, at)
	}
	return netip.AddrPort{}
}

// kept is an address that outlives the datagram.
func kept(addr net.Addr) net.Addr {
	if s, ok := addr.(*sender); ok {
		c := *s
		return &c
	}
	return addr
}

// answerTo sends one datagram to who asked.
func answerTo(conn net.PacketConn, msg []byte, to net.Addr) error {
	who, ours := to.(*sender)
	udp, ok := conn.(*net.UDPConn)
	if !ours || !ok {
		_, err := conn.WriteTo(msg, to)
		return err
	}
	return sendNow(udp, msg, unsafe.Pointer(&who.sa), uintptr(who.size))
}

// writeTo sends one message over a connection of whatever kind.
func writeTo(conn net.Conn, msg []byte) error {
	if udp, ok := conn.(*net.UDPConn); ok {
		return sendNow(udp, msg, nil, 0)
	}
	_, err := conn.Write(msg)
	return err
}

// sendNow sends one datagram, waiting for room.
func sendNow(conn *net.UDPConn, msg []byte, to unsafe.Pointer, size uintptr) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Write(func(fd uintptr) bool {
		errno = sendDatagram(fd, msg, to, size)
		return errno != syscall.EAGAIN
	})
	if err == nil {
		err = failedCall(conn, "sendto", errno)
	}
	return err
}

// sendAndRead sends msg, unless it is nil or the epoch has ended, and reads what comes
// next. It sends from within the wait for something to read, which is then woken by
// the answer, and looks for one only once it can be there.
func sendAndRead(e *epoch, conn net.Conn, msg, into []byte) (n int, err error) {
	udp, ok := conn.(*net.UDPConn)
	if !ok {
		return sendThenRead(e, conn, msg, into)
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return 0, err
	}
	var errno syscall.Errno
	var failed error
	call := "recvfrom"
	err = raw.Read(func(fd uintptr) bool {
		if msg == nil {
			n, errno = readDatagram(fd, into)
			return errno != syscall.EAGAIN
		}
		if !e.beginSend() {
			failed = errSwapped
			return true
		}
		errno = sendDatagram(fd, msg, nil, 0)
		e.endSend()
		if errno != 0 {
			call = "sendto"
			return true
		}
		msg = nil
		return false
	})
	switch {
	case err != nil || failed != nil:
		return 0, cmp.Or(err, failed)
	case errno == syscall.EAGAIN: // no room to send
		return sendThenRead(e, conn, msg, into)
	}
	return n, failedCall(udp, call, errno)
}

// failedCall is the error of a call on conn, nil where there is none.
func failedCall(conn *net.UDPConn, call string, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return &net.OpError{Op: call, Net: "udp", Addr: conn.RemoteAddr(), Err: os.NewSyscallError(call, errno)}
}

func sendDatagram(fd uintptr, msg []byte, to unsafe.Pointer, size uintptr) syscall.Errno {
	for {
		_, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(msg))),
			uintptr(len(msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, uintptr(to), size)
		if errno != syscall.EINTR {
			return errno
		}
	}
}

func readDatagram(fd uintptr, into []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(into))),
			uintptr(len(into)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
