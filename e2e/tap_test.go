//go:build linux

package e2e

import (
	endian "encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// segment is one TCP segment with data that was put on a link.
type segment struct {
	at       time.Time
	from, to netip.AddrPort
	bytes    int
}

// The ring that the kernel writes the heads of frames to (packet_mmap): a socket's
// own queue would be full after three segments of 64 KiB.
const (
	ringFrame  = 256
	ringBlock  = 1 << 20
	ringBlocks = 64
	ringFrames = ringBlock / ringFrame * ringBlocks
)

// tap notes the TCP segments with data that are put on a loopback: when, between
// whom, how long. Frames are seen as they are sent, before anybody receives them.
type tap struct {
	fd   int
	ring []byte
	stop atomic.Bool
	done sync.WaitGroup
	lost uint32

	segments []segment // the reader's until it is done
}

// openTap listens on the loopback of a process's network namespace, or of ours
// where pid is 0.
func openTap(t *testing.T, pid int) *tap {
	t.Helper()
	p := &tap{}
	ended := make(chan error)
	go func() { ended <- p.open(pid) }()
	if err := <-ended; errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		require.Root(t)
		t.Fatal(err)
	} else if err != nil {
		t.Fatal(err)
	}
	p.done.Go(p.read)
	t.Cleanup(p.close)
	return p
}

// open makes the socket on a thread that enters the namespace, and ends with it.
func (p *tap) open(pid int) error {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The first thread never ends, and is what others take for the process.
		defer runtime.UnlockOSThread()
		elsewhere := make(chan error)
		go func() { elsewhere <- p.open(pid) }()
		return <-elsewhere
	}
	if pid != 0 {
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	p.fd = fd
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2),
		unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{
			Block_size: ringBlock, Block_nr: ringBlocks, Frame_size: ringFrame, Frame_nr: ringFrames,
		}),
	); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if p.ring, err = unix.Mmap(fd, 0, ringBlock*ringBlocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	// Bound only now, so that the ring has every frame.
	all := uint16(unix.ETH_P_ALL)
	return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8}))
}

// seen ends the tap and gives what it saw, which must be all.
func (p *tap) seen(t *testing.T) []segment {
	t.Helper()
	p.close()
	if p.lost > 0 {
		t.Errorf("the tap missed %d frames", p.lost)
	}
	return p.segments
}

func (p *tap) close() {
	if p.stop.Swap(true) {
		return
	}
	p.done.Wait()
	if stats, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		p.lost = stats.Drops
	}
	unix.Munmap(p.ring)
	unix.Close(p.fd)
}

// read notes segments until the tap is stopped and nothing is waiting.
func (p *tap) read() {
	for at := 0; ; at = (at + 1) % ringFrames {
		frame := p.ring[at*ringFrame : (at+1)*ringFrame]
		status := (*uint32)(unsafe.Pointer(&frame[0]))
		for atomic.LoadUint32(status)&unix.TP_STATUS_USER == 0 {
			stopped := p.stop.Load()
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 20)
			if stopped && n == 0 || err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
		}
		p.note(frame)
		atomic.StoreUint32(status, unix.TP_STATUS_KERNEL)
	}
}

// note reads a frame: struct tpacket2_hdr, sockaddr_ll, and the packet.
func (p *tap) note(frame []byte) {
	const header, packetType = 32, 10
	if frame[header+packetType] != unix.PACKET_OUTGOING {
		return
	}
	snapped, start := endian.NativeEndian.Uint32(frame[8:]), int(endian.NativeEndian.Uint16(frame[14:]))
	s, ok := parseSegment(frame[start:min(start+int(snapped), len(frame))])
	if !ok {
		return
	}
	s.at = time.Unix(int64(endian.NativeEndian.Uint32(frame[16:])), int64(endian.NativeEndian.Uint32(frame[20:])))
	p.segments = append(p.segments, s)
}

// parseSegment reads an IP packet's head; only TCP with data is of interest.
func parseSegment(b []byte) (s segment, ok bool) {
	var from, to netip.Addr
	var tcp []byte
	var length int
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_TCP:
		from, to = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		head := int(b[0]&0xf) * 4
		length = int(endian.BigEndian.Uint16(b[2:])) - head
		tcp = b[min(head, len(b)):]
	case len(b) >= 40 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		from, to = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		length = int(endian.BigEndian.Uint16(b[4:]))
		tcp = b[40:]
	}
	if len(tcp) < 20 {
		return s, false
	}
	s.from = netip.AddrPortFrom(from, endian.BigEndian.Uint16(tcp))
	s.to = netip.AddrPortFrom(to, endian.BigEndian.Uint16(tcp[2:]))
	s.bytes = length - int(tcp[12]>>4)*4
	return s, s.bytes > 0
}
