//go:build linux

package e2e

import (
	endian "encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

// segment is one TCP segment with data that was put on a link.
type segment struct {
	at       time.Time
	from, to netip.AddrPort
	bytes    int
}

// tap notes the TCP segments with data that are put on a loopback: when, between
// whom, how long.
type tap struct {
	*lab.Ring
	segments []segment // the ring's until it is closed
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
	t.Cleanup(p.Close)
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
	ring, err := lab.OpenRing(0, p.note)
	p.Ring = ring
	return err
}

// seen ends the tap and gives what it saw, which must be all.
func (p *tap) seen(t *testing.T) []segment {
	t.Helper()
	p.Close()
	if p.Lost > 0 {
		t.Errorf("the tap missed %d frames", p.Lost)
	}
	return p.segments
}

func (p *tap) note(f lab.Frame) {
	if !f.Outgoing {
		return
	}
	if s, ok := parseSegment(f.Packet); ok {
		s.at = time.Unix(0, f.At)
		p.segments = append(p.segments, s)
	}
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
