package firewall

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Queues are AF_XDP sockets, one bound to each queue of a link. What such a
// socket sends passes no nftables hook at all (bypass.md B06); but each queue
// takes one alone, so that holding them all leaves none to the agent. Traffic is
// not touched.
type Queues struct {
	link  int
	files []*os.File
	pages [][]byte
}

// maxQueues bounds the search for a link's last queue.
const maxQueues = 4096

// HoldQueues binds every queue of the link, in the namespace of the calling
// thread. It takes NET_RAW; the sockets work on without it.
func HoldQueues(link int) (*Queues, error) {
	q := &Queues{link: link}
	for queue := range uint32(maxQueues) {
		err := q.hold(queue)
		switch {
		case errors.Is(err, unix.EINVAL) && queue > 0:
			return q, nil // past the last
		case err != nil:
			return nil, errors.Join(fmt.Errorf("hold queue %d of link %d: %w", queue, link, err), q.Close())
		}
	}
	return q, nil
}

// Files are the sockets, for a keeper that outlives us.
func (q *Queues) Files() []*os.File { return q.files }

// Close gives the queues back.
func (q *Queues) Close() error {
	var errs []error
	for _, f := range q.files {
		errs = append(errs, f.Close())
	}
	for _, p := range q.pages {
		errs = append(errs, unix.Munmap(p))
	}
	q.files, q.pages = nil, nil
	return errors.Join(errs...)
}

func (q *Queues) hold(queue uint32) error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket(AF_XDP)", err)
	}
	page, err := bindXDP(fd, q.link, queue)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	q.files = append(q.files, os.NewFile(uintptr(fd), "xdp"))
	q.pages = append(q.pages, page)
	return nil
}

// bindXDP gives the socket the least memory and rings that the kernel takes
// (Documentation/networking/af_xdp.rst), and binds it in copy mode, which every
// driver has.
func bindXDP(fd, link int, queue uint32) (page []byte, err error) {
	page, err = unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Munmap(page))
		}
	}()
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&page[0]))), Len: uint64(len(page)), Size: uint32(len(page))}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG, uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	runtime.KeepAlive(&reg)
	if errno != 0 {
		return nil, os.NewSyscallError("setsockopt(XDP_UMEM_REG)", errno)
	}
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, 1); err != nil {
			return nil, os.NewSyscallError("setsockopt(AF_XDP ring)", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(link), QueueID: queue}); err != nil {
		return nil, os.NewSyscallError("bind(AF_XDP)", err)
	}
	return page, nil
}
