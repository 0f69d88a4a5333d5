//go:build linux

package torture

import (
	endian "encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// segment is data that was put on a link, of TCP or UDP.
type segment struct {
	at    int64 // nanoseconds of Unix
	peer  netip.Addr
	bytes int32
	out   bool // towards the target
}

// The ring that the kernel writes the heads of frames to (packet_mmap).
const (
	ringFrame  = 256
	ringBlock  = 1 << 20
	ringBlocks = 64
	ringFrames = ringBlock / ringFrame * ringBlocks
)

// tap notes the data that goes to and from the targets on a link of ours: when,
// and how long.
type tap struct {
	fd      int
	ring    []byte
	targets map[netip.Addr]bool
	// lo says that what is sent is received on the same link: it is noted once.
	lo   bool
	stop atomic.Bool
	done sync.WaitGroup
	lost uint32

	mu       sync.Mutex
	segments []segment
}

func openTap(t *testing.T, link string, targets []netip.Addr) *tap {
	t.Helper()
	iface, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{targets: map[netip.Addr]bool{}, lo: link == "lo"}
	for _, a := range targets {
		p.targets[a] = true
	}
	if err := p.open(iface.Index); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		require.Root(t)
		t.Fatal(err)
	} else if err != nil {
		t.Fatal(err)
	}
	p.done.Go(p.read)
	t.Cleanup(p.close)
	return p
}

func (p *tap) open(index int) error {
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
	return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: index}))
}

// taken gives what was seen since it was asked last.
func (p *tap) taken() []segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.segments
	p.segments = nil
	return s
}

// seen ends the tap and gives the rest.
func (p *tap) seen(t *testing.T) []segment {
	t.Helper()
	p.close()
	if p.lost > 0 {
		t.Errorf("the tap missed %d frames", p.lost)
	}
	return p.taken()
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
	if p.lo && frame[header+packetType] != unix.PACKET_OUTGOING {
		return
	}
	snapped, start := endian.NativeEndian.Uint32(frame[8:]), int(endian.NativeEndian.Uint16(frame[14:]))
	s, ok := p.parse(frame[start:min(start+int(snapped), len(frame))])
	if !ok {
		return
	}
	s.at = int64(endian.NativeEndian.Uint32(frame[16:]))*1e9 + int64(endian.NativeEndian.Uint32(frame[20:]))
	p.mu.Lock()
	p.segments = append(p.segments, s)
	p.mu.Unlock()
}

// parse reads an IPv4 packet's head: the targets have no other address.
func (p *tap) parse(b []byte) (s segment, ok bool) {
	if len(b) < 28 || b[0]>>4 != 4 {
		return s, false
	}
	from, to := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	head := int(b[0]&0xf) * 4
	length := int(endian.BigEndian.Uint16(b[2:])) - head
	if len(b) < head+8 {
		return s, false
	}
	fromPort, toPort := endian.BigEndian.Uint16(b[head:]), endian.BigEndian.Uint16(b[head+2:])
	switch {
	case b[9] == unix.IPPROTO_TCP && len(b) >= head+20:
		s.bytes = int32(length - int(b[head+12]>>4)*4)
	case b[9] == unix.IPPROTO_UDP:
		s.bytes = int32(length - 8)
	default:
		return s, false
	}
	switch {
	// On the loopback every address is everybody's: the service's port tells.
	case p.targets[to] && service(toPort):
		s.peer, s.out = to, true
	case p.targets[from] && service(fromPort):
		s.peer = from
	default:
		return s, false
	}
	return s, s.bytes > 0
}

func service(port uint16) bool {
	return port == 7 || port == 80 || port == 443 || port == 8080
}
