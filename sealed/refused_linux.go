package sealed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Refused is a packet that the sandbox's ruleset refused before anything of it
// was read.
type Refused struct {
	// Why is the log prefix of the rule: firewall.SealedUnlisted, SealedPacket or
	// SealedListener.
	Why string
	// Protocol is the IP protocol number.
	Protocol            uint8
	Source, Destination netip.AddrPort
	// Lost is how many refusals before this one came too fast to be told.
	Lost uint64
}

// The messages and attributes of NFLOG (linux/netfilter/nfnetlink_log.h).
const (
	nflogPacket    = unix.NFNL_SUBSYS_ULOG << 8
	nflogConfig    = unix.NFNL_SUBSYS_ULOG<<8 | 1
	nflogCommand   = 1
	nflogMode      = 2
	nflogThreshold = 5
	nflogFlags     = 6
	nflogPayload   = 9
	nflogPrefix    = 10
	nflogSequence  = 12

	nflogBind     = 1
	nflogCopy     = 2
	nflogNumbered = 1
)

// bindLog asks for the packets of our group, each at once: when CMD hears that
// it was refused, the message is there, so that none is lost when it then ends.
func (s *Sandbox) bindLog() error {
	raw, err := s.log.SyscallConn()
	if err != nil {
		return err
	}
	b, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: nflogCommand, Data: []byte{nflogBind}},
		{Type: nflogMode, Data: []byte{0, 0, 0, 128, nflogCopy, 0}},
		{Type: nflogThreshold, Data: []byte{0, 0, 0, 1}},
		{Type: nflogFlags, Data: []byte{0, nflogNumbered}},
	})
	if err != nil {
		return err
	}
	m := netlink.Message{
		Header: netlink.Header{
			Length: uint32(unix.NLMSG_HDRLEN + 4 + len(b)), Type: nflogConfig,
			Flags: netlink.Request | netlink.Acknowledge, Sequence: 1,
		},
		Data: append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, logGroup}, b...),
	}
	wire, err := m.MarshalBinary()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		// More than a burst; what the system's bound leaves of it.
		inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 2<<20)
		if inner != nil {
			return
		}
		if inner = unix.Sendto(int(fd), wire, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); inner != nil {
			return
		}
		buf := make([]byte, 4096)
		var n int
		if n, _, inner = unix.Recvfrom(int(fd), buf, 0); inner != nil {
			return
		}
		if code := int32(binary.NativeEndian.Uint32(buf[unix.NLMSG_HDRLEN:n])); code != 0 {
			inner = unix.Errno(-code)
		}
	})
	return errors.Join(err, inner)
}

// Refusals tells f of every refused packet until ctx ends, and then of those
// that are waiting still. Only one may run at a time.
func (s *Sandbox) Refusals(ctx context.Context, f func(Refused)) error {
	stop := context.AfterFunc(ctx, func() {
		// Its only error is that the file is closed, which ends the read too.
		if err := s.log.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return
		}
	})
	defer stop()
	r := refusals{deliver: f, buf: make([]byte, 64<<10)}
	err := r.receiveAll(s.log)
	if err != nil && s.isClosing() {
		err = nil // Close has closed the file
	}
	if err = errors.Join(err, r.err); err != nil {
		return fmt.Errorf("read what the sandbox's ruleset refused: %w", err)
	}
	return nil
}

// receiveAll reads until the deadline, and then what is waiting still. It ends with
// r.err, too.
func (r *refusals) receiveAll(log *os.File) error {
	raw, err := log.SyscallConn()
	if err != nil {
		return err
	}
	for r.err == nil {
		err := raw.Read(r.receive)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return raw.Control(r.drain)
		case err != nil:
			return err
		}
	}
	return nil
}

type refusals struct {
	deliver func(Refused)
	buf     []byte
	next    uint32 // sequence number
	err     error
}

// receive takes one datagram; false when there is none.
func (r *refusals) receive(fd uintptr) bool {
	n, _, err := unix.Recvfrom(int(fd), r.buf, unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
		return true // the gap in the numbers says how many
	case err != nil:
		r.err = os.NewSyscallError("recvfrom", err)
		return true
	}
	r.datagram(r.buf[:n])
	return true
}

func (r *refusals) drain(fd uintptr) {
	for r.err == nil && r.receive(fd) {
	}
}

func (r *refusals) datagram(b []byte) {
	for len(b) >= unix.NLMSG_HDRLEN+4 {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN+4 || size > len(b) {
			return
		}
		if binary.NativeEndian.Uint16(b[4:]) == nflogPacket {
			r.packet(b[unix.NLMSG_HDRLEN+4 : size])
		}
		b = b[min(len(b), (size+3)&^3):]
	}
}

func (r *refusals) packet(attrs []byte) {
	ad, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return
	}
	var out Refused
	var payload []byte
	for ad.Next() {
		switch ad.Type() {
		case nflogPrefix:
			out.Why = ad.String()
		case nflogPayload:
			payload = ad.Bytes()
		case nflogSequence:
			if b := ad.Bytes(); len(b) == 4 {
				seq := binary.BigEndian.Uint32(b)
				out.Lost = uint64(seq - r.next)
				r.next = seq + 1
			}
		}
	}
	if ad.Err() != nil {
		return
	}
	out.Protocol, out.Source, out.Destination = readHeaders(payload)
	r.deliver(out)
}

// readHeaders reads addresses and, where the packet has them and they come at
// once, ports. What is cut short is left zero.
func readHeaders(b []byte) (protocol uint8, from, to netip.AddrPort) {
	if len(b) < 1 {
		return 0, from, to
	}
	var src, dst netip.Addr
	var rest []byte
	switch b[0] >> 4 {
	case 4:
		size := int(b[0]&0x0f) * 4
		if size < 20 || len(b) < size {
			return 0, from, to
		}
		protocol, rest = b[9], b[size:]
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	case 6:
		if len(b) < 40 {
			return 0, from, to
		}
		protocol, rest = b[6], b[40:]
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	default:
		return 0, from, to
	}
	var sport, dport uint16
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP:
		if len(rest) >= 4 {
			sport, dport = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
		}
	}
	return protocol, netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
}
