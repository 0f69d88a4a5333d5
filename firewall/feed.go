package firewall

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// feed is a netlink socket on which the kernel tells us things unasked.
type feed struct {
	file *os.File
	buf  []byte
}

// openFeed opens one in the namespace of the calling thread, subscribed to the
// groups of the mask.
func openFeed(protocol int, groups uint32) (*feed, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket(AF_NETLINK)", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil {
		// Forcing takes the machine's NET_ADMIN; the plain option stops at rmem_max.
		err = os.NewSyscallError("setsockopt(SO_RCVBUF)", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer))
	}
	if err == nil {
		err = os.NewSyscallError("bind(AF_NETLINK)", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &feed{file: file, buf: make([]byte, 256<<10)}, nil
}

// request sends a message; its answer arrives with everything else.
func (f *feed) request(typ, flags uint16, data []byte) error {
	_, err := f.file.Write(appendMessage(nil, typ, unix.NLM_F_REQUEST|flags, 1, data))
	return err
}

// run hands every message to handle until the context ends, which is no error.
// lost is called when the kernel had to throw messages away.
func (f *feed) run(ctx context.Context, handle func(h unix.NlMsghdr, data []byte) error, lost func()) error {
	stop := context.AfterFunc(ctx, func() {
		// A deadline in the past ends the read; a file that is closed needs none.
		if err := f.file.SetReadDeadline(past()); err != nil {
			return
		}
	})
	defer stop()
	for {
		n, err := f.file.Read(f.buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			lost()
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		default:
			if err := eachMessage(f.buf[:n], handle); err != nil {
				return err
			}
		}
	}
}

func (f *feed) close() error { return f.file.Close() }
