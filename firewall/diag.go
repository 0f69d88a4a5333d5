package firewall

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Of linux/sock_diag.h and linux/inet_diag.h.
const (
	tcpDiagGetSock   = 18 // TCPDIAG_GETSOCK
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	sockDestroy      = 21 // SOCK_DESTROY, Linux 4.5
	diagCgroupID     = 21 // INET_DIAG_CGROUP_ID, Linux 5.8
	diagIDSize       = 48 // struct inet_diag_sockid
	diagMsgSize      = 72 // struct inet_diag_msg
	allStates        = 0xffffffff
	// openStates are those of TCP that somebody may wait in (tcp_states.h): not
	// TIME_WAIT (6), CLOSE (7), LISTEN (10) and SYN_RECV (3).
	openStates = 1<<1 | 1<<2 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11
)

func openDiag() (*socket, error) {
	fd, err := openNetlink(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	return newSocket(fd)
}

// diagID is what a socket is found by; the cookie all ones means any.
type diagID struct {
	local, remote netip.AddrPort
	cookie        [8]byte
}

func anyCookie() [8]byte { return [8]byte{255, 255, 255, 255, 255, 255, 255, 255} }

// diagRequest is struct inet_diag_req_v2.
func diagRequest(family, protocol uint8, states uint32, id diagID) []byte {
	b := []byte{family, protocol, 0, 0}
	b = binary.NativeEndian.AppendUint32(b, states)
	b = binary.BigEndian.AppendUint16(b, id.local.Port())
	b = binary.BigEndian.AppendUint16(b, id.remote.Port())
	for _, a := range [2]netip.Addr{id.local.Addr(), id.remote.Addr()} {
		var field [16]byte
		copy(field[:], a.AsSlice())
		b = append(b, field[:]...)
	}
	b = append(b, 0, 0, 0, 0) // any interface
	return append(b, id.cookie[:]...)
}

// diagMsg is what we read of struct inet_diag_msg.
type diagMsg struct {
	local, remote netip.AddrPort
	cookie        [8]byte
	inode         uint32
}

func parseDiag(b []byte) (diagMsg, []byte, error) {
	if len(b) < diagMsgSize {
		return diagMsg{}, nil, errShortMessage
	}
	addr := func(at int) netip.Addr {
		if b[0] == unix.AF_INET {
			return netip.AddrFrom4([4]byte(b[at:]))
		}
		return netip.AddrFrom16([16]byte(b[at:])).Unmap()
	}
	m := diagMsg{
		local:  netip.AddrPortFrom(addr(8), binary.BigEndian.Uint16(b[4:])),
		remote: netip.AddrPortFrom(addr(24), binary.BigEndian.Uint16(b[6:])),
		inode:  binary.NativeEndian.Uint32(b[68:]),
	}
	copy(m.cookie[:], b[4+40:4+diagIDSize])
	return m, b[diagMsgSize:], nil
}

// openTCP lists the TCP sockets of the namespace that have a remote end. It asks by
// the older of two messages, which alone lists both families in one walk of the
// kernel's table: that is of all namespaces, and takes milliseconds.
func (s *socket) openTCP(f func(local, remote netip.AddrPort)) error {
	request := make([]byte, 4+diagIDSize) // struct inet_diag_req: no family, no ends
	request = binary.NativeEndian.AppendUint32(request, openStates)
	request = append(request, 0, 0, 0, 0)
	err := s.dump(tcpDiagGetSock, unix.NLM_F_DUMP, request, func(_ unix.NlMsghdr, data []byte) error {
		m, _, err := parseDiag(data)
		if err == nil {
			f(m.local, m.remote)
		}
		return err
	})
	// A kernel that cannot list them lists none.
	return os.NewSyscallError("TCPDIAG_GETSOCK", ignoreGone(err))
}

// destroySockets aborts the local sockets of flows: whoever reads or writes one
// gets ECONNABORTED. A UDP socket that talks to others as well is left alone.
// Sockets that are gone already are no error.
func destroySockets(d *socket, flows []flow) error {
	var errs []error
	var requests [][]byte
	for _, f := range flows {
		family := uint8(unix.AF_INET6)
		if f.local.Addr().Is4() {
			family = unix.AF_INET
		}
		id := diagID{local: f.local, remote: f.remote, cookie: anyCookie()}
		switch f.proto {
		case unix.IPPROTO_TCP:
		case unix.IPPROTO_UDP:
			cookie, connected, err := d.findUDP(family, id)
			if err != nil || !connected {
				errs = append(errs, ignoreGone(err))
				continue
			}
			id.cookie = cookie
		default:
			continue
		}
		requests = append(requests, diagRequest(family, f.proto, allStates, id))
	}
	err := d.many(sockDestroy, requests, func(int, unix.NlMsghdr, []byte) error { return nil })
	return errors.Join(append(errs, os.NewSyscallError("SOCK_DESTROY", err))...)
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// findUDP looks for the socket that would receive the flow's answers.
func (s *socket) findUDP(family uint8, id diagID) (cookie [8]byte, connected bool, err error) {
	err = s.dump(sockDiagByFamily, 0, diagRequest(family, unix.IPPROTO_UDP, allStates, id), func(_ unix.NlMsghdr, data []byte) error {
		m, _, err := parseDiag(data)
		cookie, connected = m.cookie, m.remote.Port() != 0
		return err
	})
	return cookie, connected, err
}
