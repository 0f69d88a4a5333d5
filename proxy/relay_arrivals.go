//go:build linux

package proxy

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// arrives goes on with an arrival; true when it has become a flow.
func (t *tunnel) arrives() bool {
	t.mu.Lock()
	over := t.closed || t.aborted != nil // what is aborted is barred
	t.mu.Unlock()
	return !over && t.arrival.step()
}

// arrived takes a tunnel off the arrivals.
func (w *worker) arrived(t *tunnel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.arrivals, t)
	t.arrival = nil
}

// hurry gives arrivals that take too long goroutines.
func (w *worker) hurry() {
	w.mu.Lock()
	if w.ticking || len(w.arrivals) == 0 {
		w.mu.Unlock()
		return
	}
	now := time.Now()
	for t := range w.arrivals {
		if now.After(t.arrival.due) {
			w.late = append(w.late, t)
		}
	}
	w.tickLocked()
	w.mu.Unlock()
	for i, t := range w.late {
		t.arrival.late()
		w.late[i] = nil
	}
	w.late = w.late[:0]
}

// tickLocked has the worker woken in a while. w.mu is held.
func (w *worker) tickLocked() {
	if !w.ticking {
		w.ticking = true
		w.tick.Reset(arrivalTick)
	}
}

// ticked is the timer's.
func (w *worker) ticked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ticking = false
	if len(w.arrivals) > 0 && !w.gone {
		w.wakeUp()
	}
}

// join adds the upstream's socket, which is connecting, to an arrival. It closes
// fd where it fails.
func (w *worker) join(t *tunnel, fd int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.aborted != nil {
		closeDescriptor(fd)
		return nil // the worker is about to end it
	}
	t.ends[upstreamEnd] = end{fd: fd, watched: true}
	event := t.event(upstreamEnd, watchWrite)
	if err := unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		t.ends[upstreamEnd] = end{fd: -1}
		closeDescriptor(fd)
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// part takes a socket from an arrival; it is the caller's then. Without a client
// there is no arrival any more: the upstream is closed. false when it was aborted,
// and the worker is about to end it.
func (w *worker) part(t *tunnel, i int) (fd int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.aborted != nil {
		return -1, false
	}
	fd, t.ends[i].fd = t.ends[i].fd, -1
	if err := unix.EpollCtl(w.fd, unix.EPOLL_CTL_DEL, fd, nil); err != nil {
		// EBADF, ENOENT: that it is in the set is ours to know.
		panic(fmt.Sprintf("take a socket off: %v", err))
	}
	if i == clientEnd {
		t.closed = true
		if up := t.ends[upstreamEnd].fd; up >= 0 {
			closeDescriptor(up)
		}
	}
	return fd, true
}
