//go:build linux

package proxy

import (
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of the byte path go through RawSyscall: none of them can block
// (every descriptor is non-blocking), and a call that outlasts 20 µs, as a full
// splice does, would otherwise cost the scheduler taking the processor away from
// us and finding it again. The price is that the garbage collector waits for the
// call that is in progress.

// readInto reads what is there.
func readInto(fd int, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// sendFrom writes what there is room for. A closed peer is an error, not a signal.
func sendFrom(fd int, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
			syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// spliceBytes moves up to n bytes between a pipe and a socket inside the kernel
// (splice(2)).
func spliceBytes(from, to, n int) (int, syscall.Errno) {
	for {
		moved, _, errno := syscall.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n),
			unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if errno != syscall.EINTR {
			return int(moved), errno
		}
	}
}

// epollNow reads the events that are there, without waiting.
func epollNow(poll int, events []unix.EpollEvent) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(&events[0])),
			uintptr(len(events)), 0, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// disconnect resets a connected socket there and then: connect(2) to AF_UNSPEC
// throws the send queue away, sends the reset and leaves the socket closed, all
// under the socket's lock, so a call in progress on another thread sends nothing
// more either. It is what close(2) does under SO_LINGER 0, without giving up the
// descriptor, whose number another goroutine may still be using.
func disconnect(fd int) error {
	var unspecified [16]byte // sa_family 0
	_, _, errno := syscall.RawSyscall(syscall.SYS_CONNECT, uintptr(fd),
		uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified))
	if errno != 0 {
		return errno
	}
	return nil
}

// Abort resets a connection at once: what it had still to send is thrown away,
// and when it returns nothing more is sent, whatever another goroutine is doing
// with it. The connection must still be closed.
func Abort(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = disconnect(int(fd)) }); err != nil {
		return err
	}
	return failed
}
