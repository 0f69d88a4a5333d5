//go:build linux

package proxy

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bigPipe moves the most bytes a call; smallPipe is the kernel's default.
	bigPipe   = 1 << 20
	smallPipe = 64 << 10
	// The pipes of all workers together stay below the 16,384 pages that a user
	// without CAP_SYS_RESOURCE may have in pipes before every later pipe of theirs
	// gets two pages (pipe(7), pipe-user-pages-soft): 24 × 256 + 128 × 16 pages.
	maxBigPipes   = 24
	maxSmallPipes = 128
	// pipeRetry is how long a worker copies after the kernel refused a pipe.
	pipeRetry = time.Second
)

// pipe is a kernel pipe on the way of a bulk transfer; held bytes are in it.
type pipe struct {
	read, write int
	size        int
	held        int
}

// pipes are the pipes of one worker. A pipe is lent only while there are bytes
// to move, and kept with a tunnel only while it holds bytes that its receiver has
// no room for.
type pipes struct {
	idle             []*pipe
	big, small       int
	bigMax, smallMax int
	refused          time.Time
}

// take lends an empty pipe; nil when there is none to be had, and the caller copies.
func (p *pipes) take() *pipe {
	if n := len(p.idle); n > 0 {
		lent := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return lent
	}
	switch {
	case p.big < p.bigMax:
		return p.open(bigPipe)
	case p.small < p.smallMax:
		return p.open(smallPipe)
	}
	return nil
}

func (p *pipes) open(want int) *pipe {
	if !p.refused.IsZero() && time.Since(p.refused) < pipeRetry {
		return nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		p.refused = time.Now()
		return nil
	}
	opened := &pipe{read: fds[0], write: fds[1]}
	for size := want; size > smallPipe; size /= 2 {
		if _, err := unix.FcntlInt(uintptr(opened.write), unix.F_SETPIPE_SZ, size); err == nil {
			break // else over the quota, or above pipe-max-size
		}
	}
	size, err := unix.FcntlInt(uintptr(opened.write), unix.F_GETPIPE_SZ, 0)
	if err != nil || size < smallPipe {
		// The quota is used up: two pages are slower than copying.
		opened.close()
		p.refused = time.Now()
		return nil
	}
	opened.size = size
	p.count(opened, 1)
	return opened
}

// put takes a pipe back. One that still holds bytes is closed: they belong to a
// flow that is gone.
func (p *pipes) put(lent *pipe) {
	if lent.held > 0 {
		p.count(lent, -1)
		lent.close()
		return
	}
	if lent.size > smallPipe {
		p.idle = append(p.idle, lent) // taken first
		return
	}
	p.idle = append(p.idle, nil)
	copy(p.idle[1:], p.idle)
	p.idle[0] = lent
}

func (p *pipes) count(of *pipe, by int) {
	if of.size > smallPipe {
		p.big += by
	} else {
		p.small += by
	}
}

func (p *pipes) close() {
	for _, idle := range p.idle {
		p.count(idle, -1)
		idle.close()
	}
	p.idle = nil
}

func (p *pipe) close() {
	closeDescriptor(p.read)
	closeDescriptor(p.write)
}

// closeDescriptor closes a descriptor of ours. Linux gives the number back even
// where close(2) fails, and there is nothing left to do about a failure.
func closeDescriptor(fd int) {
	syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0)
}
