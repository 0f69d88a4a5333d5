package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketBuffer is what we ask for on both sides: with the defaults, batches
// above 208 KB are refused and answers are lost (nftables-notes, trap 5).
const socketBuffer = 8 << 20

// socket is a netlink socket of the namespace it was opened in, whoever uses it
// now. The kernel works a request off within sendmsg, so that all answers are
// there when it returns and none must be waited for.
type socket struct {
	mu   sync.Mutex // one batch and its answers at a time
	fd   int
	seq  uint32
	room int // largest message the kernel will take
	buf  []byte
}

// NetlinkSocket opens a netlink socket in the namespace of the calling thread.
// Its descriptor may be passed to another process and given to OpenSocket there.
func NetlinkSocket() (*os.File, error) {
	fd, err := openNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

func openNetlink(protocol int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, os.NewSyscallError("socket(AF_NETLINK)", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return -1, errors.Join(os.NewSyscallError("bind(AF_NETLINK)", err), unix.Close(fd))
	}
	return fd, nil
}

// inNamespace runs f on a thread that has entered the network namespace of the
// descriptor. A thread that cannot return is given up, never reused.
func inNamespace(ns int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		if err = unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- errors.Join(os.NewSyscallError("setns", err), home.Close())
			return
		}
		err = f()
		back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, os.NewSyscallError("setns", back), home.Close())
	}()
	return <-done
}

// newSocket takes the descriptor over.
func newSocket(fd int) (*socket, error) {
	for _, o := range []struct{ force, plain int }{{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}, {unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}} {
		// Forcing is refused in a user namespace; there the system's bound holds.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.force, socketBuffer) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.plain, socketBuffer); err != nil {
			return nil, errors.Join(os.NewSyscallError("setsockopt", err), unix.Close(fd))
		}
	}
	room, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("getsockopt(SO_SNDBUF)", err), unix.Close(fd))
	}
	return &socket{fd: fd, room: room - 32, buf: make([]byte, 128<<10)}, nil
}

func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd := s.fd
	s.fd = -1
	if fd < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// send writes one message; the caller holds mu.
func (s *socket) send(b []byte) error {
	if s.fd < 0 {
		return os.ErrClosed
	}
	err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	return os.NewSyscallError("sendto(netlink)", err)
}

// receive hands every waiting message to f; the caller holds mu.
func (s *socket) receive(f func(h unix.NlMsghdr, data []byte) error) error {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("recvfrom(netlink)", err)
		case n > len(s.buf):
			return fmt.Errorf("netlink answer of %d bytes is too long", n)
		}
		if err := eachMessage(s.buf[:n], f); err != nil {
			return err
		}
	}
}

// errShortMessage is a netlink message that ends within its header.
var errShortMessage = errors.New("netlink: short message")

// eachMessage takes a datagram apart.
func eachMessage(b []byte, f func(h unix.NlMsghdr, data []byte) error) error {
	for len(b) >= unix.NLMSG_HDRLEN {
		h := unix.NlMsghdr{
			Len:   binary.NativeEndian.Uint32(b),
			Type:  binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:]),
			Seq:   binary.NativeEndian.Uint32(b[8:]),
			Pid:   binary.NativeEndian.Uint32(b[12:]),
		}
		if h.Len < unix.NLMSG_HDRLEN || int(h.Len) > len(b) {
			return errShortMessage
		}
		if err := f(h, b[unix.NLMSG_HDRLEN:h.Len]); err != nil {
			return err
		}
		b = b[min(len(b), align4(int(h.Len))):]
	}
	return nil
}

func align4(n int) int { return (n + 3) &^ 3 }

// errno reads the code of an NLMSG_ERROR or NLMSG_DONE message.
func errno(data []byte) error {
	if len(data) < 4 {
		return errShortMessage
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
		return syscall.Errno(-code)
	}
	return nil
}

// dump sends one request and hands the messages of the answer to f.
func (s *socket) dump(typ uint16, flags uint16, data []byte, f func(h unix.NlMsghdr, data []byte) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	seq := s.seq
	if err := s.send(appendMessage(nil, typ, unix.NLM_F_REQUEST|flags, seq, data)); err != nil {
		return err
	}
	return s.receive(func(h unix.NlMsghdr, data []byte) error {
		switch {
		case h.Seq != seq:
			return nil
		case h.Type == unix.NLMSG_ERROR || h.Type == unix.NLMSG_DONE:
			if len(data) == 0 {
				return nil
			}
			return errno(data)
		}
		return f(h, data)
	})
}

// many makes requests of one type, hundreds in a system call, and hands each answer
// to f with the number of its request. What a request is about being gone is no
// error.
func (s *socket) many(typ uint16, requests [][]byte, f func(i int, h unix.NlMsghdr, data []byte) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for from := 0; from < len(requests); from += elementsPerMessage {
		some := requests[from:min(from+elementsPerMessage, len(requests))]
		var b []byte
		first := s.seq + 1
		for _, r := range some {
			s.seq++
			b = appendMessage(b, typ, unix.NLM_F_REQUEST, s.seq, r)
		}
		if err := s.send(b); err != nil {
			return err
		}
		err := s.receive(func(h unix.NlMsghdr, data []byte) error {
			i := int(h.Seq - first)
			switch {
			case i < 0 || i >= len(some):
				return nil
			case h.Type == unix.NLMSG_ERROR:
				return ignoreGone(errno(data))
			}
			return f(from+i, h, data)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func appendMessage(b []byte, typ, flags uint16, seq uint32, data []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// appendAttr adds one attribute, padded.
func appendAttr(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendAttrString(b []byte, typ uint16, s string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(s)+1))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, s...)
	b = append(b, 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// beginNested starts an attribute that endNested closes.
func beginNested(b []byte, typ uint16) ([]byte, int) {
	at := len(b)
	b = binary.NativeEndian.AppendUint16(b, 0)
	return binary.NativeEndian.AppendUint16(b, typ|unix.NLA_F_NESTED), at
}

func endNested(b []byte, at int) {
	binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at))
}

// attributes hands the attributes of b to f.
func attributes(b []byte, f func(typ uint16, data []byte)) error {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return errShortMessage
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:n])
		b = b[min(len(b), align4(n)):]
	}
	return nil
}

// port is the address of the socket, which the kernel writes into what it tells
// others of our requests.
func (s *socket) port() (uint32, error) {
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	nl, ok := name.(*unix.SockaddrNetlink)
	if !ok {
		return 0, fmt.Errorf("getsockname: %T", name)
	}
	return nl.Pid, nil
}
