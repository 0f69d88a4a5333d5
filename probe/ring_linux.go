package probe

import (
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is the least io_uring that sends one datagram (io_uring(7)).
type ring struct {
	fd              int
	queue, requests []byte
	params          ringLayout
}

// ringLayout is struct io_uring_params, as far as it is read.
type ringLayout struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wq uint32
	_                                                                [3]uint32
	sq                                                               struct{ head, tail, mask, entries, flags, dropped, array, _ uint32 }
	_                                                                uint64
	cq                                                               struct{ head, tail, mask, entries, overflow, cqes, flags, _ uint32 }
	_                                                                uint64
}

// ringRequest is struct io_uring_sqe.
type ringRequest struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	offset, addr  uint64
	length, op    uint32
	user          uint64
	_             [3]uint64
}

const (
	ringOpSend     = 26 // IORING_OP_SEND
	ringSingleMmap = 1  // IORING_FEAT_SINGLE_MMAP
	ringGetEvents  = 1  // IORING_ENTER_GETEVENTS
	ringOffSQEs    = 0x10000000
)

func newRing() (*ring, error) {
	r := &ring{fd: -1}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&r.params)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r.fd = int(fd)
	unix.CloseOnExec(r.fd)
	if r.params.features&ringSingleMmap == 0 {
		return nil, errors.Join(os.NewSyscallError("io_uring_setup", unix.EOPNOTSUPP), r.close())
	}
	const size = 4096
	var err error
	if r.queue, err = unix.Mmap(r.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		r.requests, err = unix.Mmap(r.fd, ringOffSQEs, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("mmap(io_uring)", err), r.close())
	}
	return r, nil
}

// send submits one request, waits for it, and gives its error.
func (r *ring) send(socket int, b []byte) error {
	*(*ringRequest)(unsafe.Pointer(&r.requests[0])) = ringRequest{
		opcode: ringOpSend, fd: int32(socket), addr: uint64(uintptr(unsafe.Pointer(&b[0]))), length: uint32(len(b)),
	}
	*r.word(r.params.sq.array) = 0
	atomic.AddUint32(r.word(r.params.sq.tail), 1)
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 1, 1, ringGetEvents, 0, 0)
	runtime.KeepAlive(b)
	if errno != 0 {
		return os.NewSyscallError("io_uring_enter", errno)
	}
	if atomic.LoadUint32(r.word(r.params.cq.tail)) == atomic.LoadUint32(r.word(r.params.cq.head)) {
		return errors.New("io_uring: no completion")
	}
	if result := int32(*r.word(r.params.cq.cqes + 8)); result < 0 {
		return os.NewSyscallError("io_uring send", unix.Errno(-result))
	}
	return nil
}

func (r *ring) word(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.queue[offset])) }

func (r *ring) close() error {
	var errs []error
	for _, m := range [][]byte{r.queue, r.requests} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}
