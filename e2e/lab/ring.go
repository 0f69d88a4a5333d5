//go:build linux

package lab

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ring that the kernel writes the heads of frames to (packet_mmap): a socket's
// own queue would be full after three segments of 64 KiB.
const (
	ringFrame  = 256
	ringBlock  = 1 << 20
	ringBlocks = 64
	ringFrames = ringBlock / ringFrame * ringBlocks
)

// Ring has the frames on links, as they are sent: before anybody receives them.
type Ring struct {
	fd   int
	ring []byte
	stop atomic.Bool
	done chan struct{}
	// Lost is how many frames were missed, once the ring is closed.
	Lost uint32
}

// Frame is the head of one.
type Frame struct {
	At       int64 // nanoseconds of Unix
	Outgoing bool
	Packet   []byte // from the network layer's head; valid while noted
}

// OpenRing listens in the thread's namespace, on the link of an index or, where
// that is 0, on all, and has note called for each frame until Close.
func OpenRing(index int, note func(Frame)) (*Ring, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	r := &Ring{fd: fd, done: make(chan struct{})}
	if err := r.listen(index); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	go r.read(note)
	return r, nil
}

func (r *Ring) listen(index int) (err error) {
	if err := errors.Join(
		unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2),
		unix.SetsockoptTpacketReq(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{
			Block_size: ringBlock, Block_nr: ringBlocks, Frame_size: ringFrame, Frame_nr: ringFrames,
		}),
	); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if r.ring, err = unix.Mmap(r.fd, 0, ringBlock*ringBlocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	// Bound only now, so that the ring has every frame.
	all := uint16(unix.ETH_P_ALL)
	return os.NewSyscallError("bind", unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: index}))
}

// Close ends it once what was written until now is noted.
func (r *Ring) Close() {
	if r.stop.Swap(true) {
		return
	}
	<-r.done
	if stats, err := unix.GetsockoptTpacketStats(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		r.Lost = stats.Drops
	}
	unix.Munmap(r.ring)
	unix.Close(r.fd)
}

func (r *Ring) read(note func(Frame)) {
	defer close(r.done)
	for at := 0; ; at = (at + 1) % ringFrames {
		frame := r.ring[at*ringFrame : (at+1)*ringFrame]
		status := (*uint32)(unsafe.Pointer(&frame[0]))
		for atomic.LoadUint32(status)&unix.TP_STATUS_USER == 0 {
			// A load that goes on fills the ring for ever: what comes after the stop is not waited for.
			if r.stop.Load() && atomic.LoadUint32(status)&unix.TP_STATUS_USER == 0 {
				return
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, 20); err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
		}
		note(parseFrame(frame))
		atomic.StoreUint32(status, unix.TP_STATUS_KERNEL)
	}
}

// parseFrame reads struct tpacket2_hdr, sockaddr_ll, and the packet.
func parseFrame(b []byte) Frame {
	const header, packetType = 32, 10
	snapped, start := int(binary.NativeEndian.Uint32(b[8:])), int(binary.NativeEndian.Uint16(b[14:]))
	return Frame{
		At:       int64(binary.NativeEndian.Uint32(b[16:]))*1e9 + int64(binary.NativeEndian.Uint32(b[20:])),
		Outgoing: b[header+packetType] == unix.PACKET_OUTGOING,
		Packet:   b[start:min(start+snapped, len(b))],
	}
}
