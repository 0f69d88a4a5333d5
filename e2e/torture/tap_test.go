//go:build linux

package torture

import (
	endian "encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

// segment is data that was put on a link, of TCP or UDP.
type segment struct {
	at    int64 // nanoseconds of Unix
	peer  netip.Addr
	bytes int32
	out   bool // towards the target
}

// tap notes the data that goes to and from the targets on a link of ours: when,
// and how long.
type tap struct {
	*lab.Ring
	targets map[netip.Addr]bool
	// lo says that what is sent is received on the same link: it is noted once.
	lo bool

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
	if p.Ring, err = lab.OpenRing(iface.Index, p.note); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		require.Root(t)
		t.Fatal(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
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
	p.Close()
	if p.Lost > 0 {
		t.Errorf("the tap missed %d frames", p.Lost)
	}
	return p.taken()
}

func (p *tap) note(f lab.Frame) {
	if p.lo && !f.Outgoing {
		return
	}
	s, ok := p.parse(f.Packet)
	if !ok {
		return
	}
	s.at = f.At
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
