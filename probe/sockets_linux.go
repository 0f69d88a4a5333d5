package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// withSocket opens a socket, does things with it and closes it.
func (a *attempt) withSocket(family, kind, proto int, f func(fd int) error) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return os.NewSyscallError(fmt.Sprintf("socket(%s)", familyName(family, kind, proto)), err)
	}
	err = a.prepare(fd)
	if err == nil {
		err = f(fd)
	}
	return errors.Join(err, unix.Close(fd))
}

// prepare puts the probe's mark on a socket, where there is one, and claims it.
func (a *attempt) prepare(fd int) error {
	if a.mark != 0 {
		if err := setOption(fd, unix.SOL_SOCKET, unix.SO_MARK, int(a.mark), "SO_MARK"); err != nil {
			return err
		}
	}
	if a.beside == nil || a.beside.Claim == nil || !a.to.IsValid() {
		return nil
	}
	return a.claim(fd)
}

// claim tells of a socket that is about to send.
func (a *attempt) claim(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return os.NewSyscallError("getsockopt(SO_DOMAIN)", err)
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return os.NewSyscallError("getsockopt(SO_PROTOCOL)", err)
	}
	s := Socket{FD: fd, To: a.to, IPv6: domain == unix.AF_INET6}
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_MPTCP:
		s.Protocol = policy.TCP
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		s.Protocol = policy.ICMP
	case unix.IPPROTO_UDP:
		s.Protocol = policy.UDP
	default:
		s.Protocol = policy.Protocol(protocol)
	}
	return a.beside.Claim(s)
}

// errAllowed is why nothing is tried: it would be no way round the policy.
var errAllowed = errors.New("not tried")

const allowedByPolicy = "the policy in force allows it"

// towards says where the next sockets send to. What the policy allows is not tried.
func (a *attempt) towards(to netip.AddrPort, protocol policy.Protocol) error {
	a.to = to.Addr().Unmap()
	if a.to.IsLoopback() {
		return nil // it leaves nothing
	}
	return a.unlessAllowed(policy.Request{Kind: policy.KindPacket, Addr: a.to, Port: to.Port(), Protocol: protocol})
}

func (a *attempt) unlessAllowed(r policy.Request) error {
	if a.beside == nil || a.beside.Allowed == nil || !a.beside.Allowed(r) {
		return nil
	}
	return errAllowed
}

// dialer connects as a program would that knows of nothing.
func (a *attempt) dialer(timeout time.Duration) *net.Dialer {
	d := &net.Dialer{Deadline: a.within(timeout), Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = a.prepare(int(fd)) })
		return errors.Join(err, failed)
	}}
	d.SetMultipathTCP(false)
	return d
}

func familyName(family, kind, proto int) string {
	names := map[int]string{
		unix.AF_INET: "AF_INET", unix.AF_INET6: "AF_INET6", unix.AF_PACKET: "AF_PACKET",
		unix.AF_XDP: "AF_XDP", unix.AF_VSOCK: "AF_VSOCK", unix.AF_NETLINK: "AF_NETLINK", unix.AF_UNIX: "AF_UNIX",
	}
	name, ok := names[family]
	if !ok {
		name = fmt.Sprint(family)
	}
	if kind == unix.SOCK_RAW && (family == unix.AF_INET || family == unix.AF_INET6) {
		return fmt.Sprintf("%s, SOCK_RAW, %d", name, proto)
	}
	return name
}

// sockaddr is an address as system calls want it.
func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}

func sendTo(fd int, b []byte, to netip.AddrPort) error {
	return os.NewSyscallError("sendto", unix.Sendto(fd, b, unix.MSG_DONTWAIT, sockaddr(to)))
}

// setOption sets a numeric option and names it where that fails.
func setOption(fd, level, option, value int, name string) error {
	return os.NewSyscallError("setsockopt("+name+")", unix.SetsockoptInt(fd, level, option, value))
}

// errSilent says that a packet was sent and nothing came of it.
var errSilent = errors.New("sent without an error")

const noFarSide = "nothing here tells whether it arrived; a far side that counts markers would"

// sent judges how a packet's sending went. Only what the kernel of this machine
// says about it counts.
func (a *attempt) sent(err error) sight {
	if err == nil || errors.Is(err, errSilent) {
		return unlessQuiet(errSilent.Error(), noFarSide)
	}
	seen := err.Error()
	if errors.Is(err, errAllowed) {
		return unproven(seen, allowedByPolicy)
	}
	if a.beside != nil && notEvenTried(err) {
		return unproven(seen, "this process may not try it; whether the sandbox may, a probe inside tells")
	}
	var got *answered
	if errors.As(err, &got) {
		return leak("%s", seen)
	}
	switch errno := errnoOf(err); errno {
	case unix.EPERM, unix.EACCES:
		return held("%s", seen)
	case unix.ENOBUFS:
		return held("%s: dropped before the wire", seen) // NET_XMIT_DROP of an egress hook
	case unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT:
		if a.seccomp && errno == unix.EAFNOSUPPORT {
			return held("%s: the filter of system calls refuses it", seen)
		}
		return unproven(seen, "this kernel does not have it")
	case unix.ENETUNREACH, unix.EADDRNOTAVAIL, unix.ENODEV:
		return unproven(seen, "there is no way there from this namespace")
	}
	var refused *localRefusal
	if errors.As(err, &refused) {
		return held("%s", seen)
	}
	return unlessQuiet(seen, "that could be the answer of a far side")
}

// notEvenTried says that the socket was refused, rather than what it sent.
func notEvenTried(err error) bool {
	var call *os.SyscallError
	return errors.As(err, &call) && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)) &&
		(strings.HasPrefix(call.Syscall, "socket(") || strings.HasPrefix(call.Syscall, "setsockopt(") || call.Syscall == "bind")
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return 0
}

// localRefusal is an ICMP error that was made on this machine.
type localRefusal struct {
	family    byte
	typ, code byte
}

// Error implements error.
func (r *localRefusal) Error() string {
	return fmt.Sprintf("refused at once by this machine (ICMP type %d, code %d)", r.typ, r.code)
}

// afterwards waits a moment for the answer to a datagram that a connected socket
// has sent: an ICMP error of this machine's own, or whatever a far side says.
func (a *attempt) afterwards(fd, family int) error {
	for deadline := a.within(200 * time.Millisecond); time.Now().Before(deadline); {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(time.Until(deadline).Milliseconds(), 1)))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("poll", err)
		case n == 0:
			return errSilent
		case fds[0].Revents&unix.POLLERR != 0:
			return readRefusal(fd, family)
		}
		b := make([]byte, 2048)
		n, _, err = unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		return &answered{b[:n]}
	}
	return errSilent
}

// answered is what a far side said.
type answered struct{ data []byte }

// Error implements error.
func (e *answered) Error() string { return fmt.Sprintf("answered with %d bytes", len(e.data)) }

// readRefusal reads the socket's error queue (ip(7), IP_RECVERR): 16 bytes of
// struct sock_extended_err and the address of who sent the ICMP message.
func readRefusal(fd, family int) error {
	oob := make([]byte, 512)
	_, n, _, _, err := unix.Recvmsg(fd, make([]byte, 64), oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return os.NewSyscallError("recvmsg(MSG_ERRQUEUE)", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	for _, m := range messages {
		if len(m.Data) < 16 {
			continue
		}
		errno := syscall.Errno(binary.NativeEndian.Uint32(m.Data))
		offender := offenderOf(m.Data[16:], family)
		if offender.IsValid() && isOurs(offender) {
			return errors.Join(&localRefusal{m.Data[4], m.Data[5], m.Data[6]}, errno)
		}
		return fmt.Errorf("ICMP error of %s: %w", offender, errno)
	}
	return errSilent
}

func offenderOf(b []byte, family int) netip.Addr {
	switch {
	case family == unix.AF_INET && len(b) >= 8:
		return netip.AddrFrom4([4]byte(b[4:8]))
	case family == unix.AF_INET6 && len(b) >= 24:
		return netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	}
	return netip.Addr{}
}

// isOurs says whether the address is one of this namespace's.
func isOurs(addr netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == addr {
			return true
		}
	}
	return addr.IsLoopback()
}
