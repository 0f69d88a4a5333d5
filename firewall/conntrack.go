package firewall

import (
	"encoding/binary"
	"errors"
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
		// Kernels that do not filter are filtered here.
		one, marked, err := parseFlow(data)
		if err == nil && marked == mark && one.remote.Addr().IsValid() {
			f(one)
		}
		return err
	})
}

// parseFlow reads one flow and its mark.
func parseFlow(data []byte) (one flow, mark uint32, err error) {
	if len(data) < 4 {
		return one, 0, errShortMessage
	}
	var tupleErr error
	err = attributes(data[4:], func(typ uint16, b []byte) {
		switch typ {
		case ctTupleOrig:
			one, tupleErr = parseTuple(b)
		case ctMarkAttr:
			if len(b) == 4 {
				mark = binary.BigEndian.Uint32(b)
			}
		}
	})
	return one, mark, errors.Join(err, tupleErr)
}

// withMark keeps the TCP flows, known by their sockets' ends, that are tracked
// under the mark, and notes how the kernel names them.
func (s *socket) withMark(flows []flow, mark uint32) ([]flow, error) {
	requests := make([][]byte, len(flows))
	for i, f := range flows {
		requests[i] = appendAttr(nfgen(f.family(), 0), ctTupleOrig|unix.NLA_F_NESTED, f.appendTuple(nil))
	}
	var marked []flow
	err := s.many(ctGet, requests, func(i int, _ unix.NlMsghdr, data []byte) error {
		found, of, err := parseFlow(data)
		if err == nil && of == mark && found.local == flows[i].local && found.remote == flows[i].remote {
			marked = append(marked, found)
		}
		return err
	})
	return marked, err
}

func (f flow) family() Family {
	if f.remote.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// appendTuple writes the flow's ends as the attributes of CTA_TUPLE_ORIG.
func (f flow) appendTuple(b []byte) []byte {
	src, dst := uint16(1), uint16(2) // CTA_IP_V4_SRC, CTA_IP_V4_DST
	if !f.remote.Addr().Is4() {
		src, dst = 3, 4
	}
	b, at := beginNested(b, ctTupleIP)
	b = appendAttr(b, src, f.local.Addr().AsSlice())
	b = appendAttr(b, dst, f.remote.Addr().AsSlice())
	endNested(b, at)
	b, at = beginNested(b, ctTupleL4)
	b = appendAttr(b, 1, []byte{f.proto}) // CTA_PROTO_NUM, _SRC_PORT, _DST_PORT
	b = appendAttr(b, 2, binary.BigEndian.AppendUint16(nil, f.local.Port()))
	b = appendAttr(b, 3, binary.BigEndian.AppendUint16(nil, f.remote.Port()))
	endNested(b, at)
	return b
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

// deleteFlows forgets flows; those gone already are no error.
func (s *socket) deleteFlows(flows []flow) error {
	requests := make([][]byte, len(flows))
	for i, f := range flows {
		requests[i] = appendAttr(nfgen(f.family(), 0), ctTupleOrig|unix.NLA_F_NESTED, f.tuple)
	}
	return s.many(ctDelete, requests, func(int, unix.NlMsghdr, []byte) error { return nil })
}
