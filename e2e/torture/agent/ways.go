package main

import (
	endian "encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sender gives one batch of datagrams to the kernel, and says how many that were and how
// many of them it did not refuse.
type sender interface {
	send() (given, accepted int, err error)
	close()
}

// ways are the ways to send datagrams that an agent has. (A connected socket is worse
// than sendto: the refusal comes back as an error of the socket, too, which the next
// call reports instead of sending.)
var ways = map[string]func(to netip.Addr) (sender, error){
	"sendto":   newDatagrams,
	"sendmmsg": newBatches,
	"gso":      newSegments,
	"uring":    newUring,
	"packet":   newPacketSocket,
}

// payload is what each datagram bears.
var payload = []byte("flood")

// nextPort spreads datagrams over ports, lest the log fold them.
var nextPort atomic.Uint32

func port() int { return 1024 + int(nextPort.Add(1)%60000) }

func socketTo(to netip.Addr) (fd int, at func(port int) unix.Sockaddr, err error) {
	if to.Is6() {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
		return fd, func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Port: port, Addr: to.As16()} }, err
	}
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	return fd, func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Port: port, Addr: to.As4()} }, err
}

// rawAddress is an address and port as the kernel reads them.
func rawAddress(to netip.Addr, port int) []byte {
	if to.Is6() {
		b := make([]byte, unix.SizeofSockaddrInet6)
		endian.NativeEndian.PutUint16(b, unix.AF_INET6)
		endian.BigEndian.PutUint16(b[2:], uint16(port))
		copy(b[8:], to.AsSlice())
		return b
	}
	b := make([]byte, unix.SizeofSockaddrInet4)
	endian.NativeEndian.PutUint16(b, unix.AF_INET)
	endian.BigEndian.PutUint16(b[2:], uint16(port))
	copy(b[4:], to.AsSlice())
	return b
}

// datagramSocket sends to another port each time.
type datagramSocket struct {
	fd int
	at func(port int) unix.Sockaddr
}

func newDatagrams(to netip.Addr) (sender, error) {
	fd, at, err := socketTo(to)
	return &datagramSocket{fd, at}, err
}

func (s *datagramSocket) send() (int, int, error) {
	if unix.Sendto(s.fd, payload, unix.MSG_DONTWAIT, s.at(port())) != nil {
		return 1, 0, nil // EPERM tells that it was refused here and now
	}
	return 1, 1, nil
}

func (s *datagramSocket) close() { unix.Close(s.fd) }

// batches are given to sendmmsg, which ends at the first that is refused.
type batches struct {
	datagramSocket
	messages []mmsghdr
}

type mmsghdr struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

func newBatches(to netip.Addr) (sender, error) {
	fd, at, err := socketTo(to)
	name := rawAddress(to, port())
	s := &batches{datagramSocket: datagramSocket{fd, at}, messages: make([]mmsghdr, 64)}
	for i := range s.messages {
		s.messages[i].header.Name, s.messages[i].header.Namelen = &name[0], uint32(len(name))
		s.messages[i].header.Iov = &unix.Iovec{Base: &payload[0], Len: uint64(len(payload))}
		s.messages[i].header.Iovlen = 1
	}
	return s, err
}

func (s *batches) send() (int, int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.messages[0])), uintptr(len(s.messages)), 0, 0, 0)
	if errno != 0 {
		return 1, 0, nil
	}
	if int(n) < len(s.messages) {
		return int(n) + 1, int(n), nil
	}
	return int(n), int(n), nil
}

// segments are many datagrams in one packet, which a device would take apart (UDP
// GSO): one for the rules.
type segments struct {
	datagramSocket
	all []byte
}

const segmentsOfOne = 64

func newSegments(to netip.Addr) (sender, error) {
	fd, at, err := socketTo(to)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(payload))
	}
	s := &segments{datagramSocket: datagramSocket{fd, at}}
	for range segmentsOfOne {
		s.all = append(s.all, payload...)
	}
	return s, err
}

func (s *segments) send() (int, int, error) {
	if err := unix.Sendto(s.fd, s.all, unix.MSG_DONTWAIT, s.at(port())); err != nil {
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
			return segmentsOfOne, 0, err
		}
		return segmentsOfOne, 0, nil
	}
	return segmentsOfOne, segmentsOfOne, nil
}

// uring gives the kernel many sends at once, none of which waits for another's
// success (io_uring(7)).
type uring struct {
	datagramSocket
	ring            int
	sq, cq, entries []byte
	tail, cqTail    *uint32
	cqHead          *uint32
	results         uintptr
	name            []byte
	mask, cqMask    uint32
}

const uringBatch = 128

type uringParams struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
	_                                                    [3]uint32
	sqOff                                                struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cqOff struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

func newUring(to netip.Addr) (sender, error) {
	fd, at, err := socketTo(to)
	if err != nil {
		return nil, err
	}
	s := &uring{datagramSocket: datagramSocket{fd, at}, name: rawAddress(to, port())}
	var p uringParams
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uringBatch, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("io_uring_setup: %w", errno)
	}
	s.ring = int(ring)
	mapping := func(offset int64, length uint32) ([]byte, error) {
		return unix.Mmap(s.ring, offset, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if s.sq, err = mapping(0, p.sqOff.array+4*p.sqEntries); err != nil {
		return nil, err
	}
	if s.cq, err = mapping(0x8000000, p.cqOff.cqes+16*p.cqEntries); err != nil {
		return nil, err
	}
	if s.entries, err = mapping(0x10000000, 64*p.sqEntries); err != nil {
		return nil, err
	}
	word := func(b []byte, at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&b[at])) }
	s.tail, s.mask = word(s.sq, p.sqOff.tail), *word(s.sq, p.sqOff.mask)
	s.cqHead, s.cqTail, s.cqMask = word(s.cq, p.cqOff.head), word(s.cq, p.cqOff.tail), *word(s.cq, p.cqOff.mask)
	s.results = uintptr(p.cqOff.cqes)
	for i := range p.sqEntries {
		*word(s.sq, p.sqOff.array+4*i) = i
		e := s.entries[64*i:]
		e[0] = 26 // IORING_OP_SEND
		*(*int32)(unsafe.Pointer(&e[4])) = int32(fd)
		*(*uint64)(unsafe.Pointer(&e[16])) = uint64(uintptr(unsafe.Pointer(&payload[0])))
		*(*uint32)(unsafe.Pointer(&e[24])) = uint32(len(payload))
		*(*uint32)(unsafe.Pointer(&e[28])) = unix.MSG_DONTWAIT
		*(*uint64)(unsafe.Pointer(&e[8])) = uint64(uintptr(unsafe.Pointer(&s.name[0])))
		*(*uint16)(unsafe.Pointer(&e[44])) = uint16(len(s.name))
	}
	return s, nil
}

func (s *uring) send() (given, accepted int, err error) {
	atomic.StoreUint32(s.tail, *s.tail+uringBatch)
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(s.ring), uringBatch, uringBatch, 1, 0, 0)
	if errno != 0 {
		return 0, 0, fmt.Errorf("io_uring_enter: %w", errno)
	}
	for head := *s.cqHead; head != atomic.LoadUint32(s.cqTail); head++ {
		if *(*int32)(unsafe.Pointer(&s.cq[s.results+16*uintptr(head&s.cqMask)+8])) >= 0 {
			accepted++
		}
		atomic.StoreUint32(s.cqHead, head+1)
	}
	return int(n), accepted, nil
}

func (s *uring) close() {
	unix.Close(s.ring)
	unix.Close(s.fd)
}

// packetSocket sends past the rules of the network layer (packet(7)). It takes
// CAP_NET_RAW. (A ring of packets would send no more: the kernel ends at the first that
// is refused, as it does in sendmmsg.)
type packetSocket struct {
	fd     int
	at     *unix.SockaddrLinklayer
	packet []byte
}

func newPacketSocket(to netip.Addr) (sender, error) {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	everybody := [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return &packetSocket{
		fd, &unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: link.Index, Halen: 6, Addr: everybody},
		datagram([4]byte{100, 64, 0, 2}, to.As4(), 7), // a port that the far side's tap looks at
	}, nil
}

func (s *packetSocket) send() (int, int, error) {
	if err := unix.Sendto(s.fd, s.packet, unix.MSG_DONTWAIT, s.at); err != nil {
		return 1, 0, nil // ENOBUFS
	}
	return 1, 1, nil
}

func (s *packetSocket) close() { unix.Close(s.fd) }

// datagram is an IPv4 packet with a UDP datagram (RFC 791 section 3.1, RFC 768) of payload.
func datagram(from, to [4]byte, toPort uint16) []byte {
	const ip, udp = 20, 8
	b := make([]byte, ip+udp, ip+udp+len(payload))
	b = append(b, payload...)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	endian.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], from[:])
	copy(b[16:], to[:])
	sum := uint32(0)
	for i := 0; i < ip; i += 2 {
		sum += uint32(endian.BigEndian.Uint16(b[i:]))
	}
	endian.BigEndian.PutUint16(b[10:], ^uint16(sum>>16+sum&0xffff))
	endian.BigEndian.PutUint16(b[ip:], 40000)
	endian.BigEndian.PutUint16(b[ip+2:], toPort)
	endian.BigEndian.PutUint16(b[ip+4:], uint16(udp+len(payload)))
	return b
}
