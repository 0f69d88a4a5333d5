package firewall

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctNetlink   = 1 << 8 // NFNL_SUBSYS_CTNETLINK
	ctGet       = ctNetlink | 1
	ctDelete    = ctNetlink | 2
	ctTupleOrig = 1  // CTA_TUPLE_ORIG
	ctMarkAttr  = 8  // CTA_MARK
	ctMaskAttr  = 21 // CTA_MARK_MASK
	ctTupleIP   = 1
	ctTupleL4   = 2
)

// flow is one tracked flow that went straight out.
type flow struct {
	local, remote netip.AddrPort // of ICMP without ports
	proto         uint8
	tuple         []byte // as the kernel gave it, to name the flow by
}

// directFlows lists the flows with the mark.
func (s *socket) directFlows(mark uint32, f func(flow)) error {
	data := nfgen(unix.AF_UNSPEC, 0)
	data = appendAttr(data, ctMarkAttr, binary.BigEndian.AppendUint32(nil, mark))
	data = appendAttr(data, ctMaskAttr, binary.BigEndian.AppendUint32(nil, 0xffffffff))
	return s.dump(ctGet, unix.NLM_F_DUMP, data, func(_ unix.NlMsghdr, data []byte) error {
		if len(data) < 4 {
			return errShortMessage
		}
		var one flow
		marked := false
		var tupleErr error
		err := attributes(data[4:], func(typ uint16, b []byte) {
			switch typ {
			case ctTupleOrig:
				one, tupleErr = parseTuple(b)
			case ctMarkAttr:
				// Kernels that do not filter are filtered here.
				marked = len(b) == 4 && binary.BigEndian.Uint32(b) == mark
			}
		})
		if err == nil {
			err = tupleErr
		}
		if err == nil && marked && one.remote.Addr().IsValid() {
			f(one)
		}
		return err
	})
}

func parseTuple(b []byte) (flow, error) {
	var f flow
	var src, dst netip.Addr
	var sport, dport uint16
	f.tuple = append(f.tuple, b...)
	var inner error
	err := attributes(b, func(typ uint16, b []byte) {
		var err error
		switch typ {
		case ctTupleIP:
			err = attributes(b, func(typ uint16, b []byte) {
				switch typ {
				case 1, 3: // CTA_IP_V4_SRC, CTA_IP_V6_SRC
					src, _ = netip.AddrFromSlice(b)
				case 2, 4:
					dst, _ = netip.AddrFromSlice(b)
				}
			})
		case ctTupleL4:
			err = attributes(b, func(typ uint16, b []byte) {
				switch {
				case typ == 1 && len(b) >= 1: // CTA_PROTO_NUM
					f.proto = b[0]
				case typ == 2 && len(b) >= 2:
					sport = binary.BigEndian.Uint16(b)
				case typ == 3 && len(b) >= 2:
					dport = binary.BigEndian.Uint16(b)
				}
			})
		}
		if err != nil {
			inner = err
		}
	})
	if err == nil {
		err = inner
	}
	f.local, f.remote = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return f, err
}

// deleteFlows forgets flows, many a message; those gone already are no error.
func (s *socket) deleteFlows(flows []flow) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(flows) > 0 {
		n := min(len(flows), elementsPerMessage)
		var b []byte
		for _, f := range flows[:n] {
			family := uint8(unix.AF_INET6)
			if f.remote.Addr().Is4() {
				family = unix.AF_INET
			}
			data := appendAttr(nfgen(Family(family), 0), ctTupleOrig|unix.NLA_F_NESTED, f.tuple)
			s.seq++
			b = appendMessage(b, ctDelete, unix.NLM_F_REQUEST, s.seq, data)
		}
		if err := s.send(b); err != nil {
			return err
		}
		err := s.receive(func(h unix.NlMsghdr, data []byte) error {
			if h.Type == unix.NLMSG_ERROR {
				return ignoreGone(errno(data))
			}
			return nil
		})
		if err != nil {
			return err
		}
		flows = flows[n:]
	}
	return nil
}
