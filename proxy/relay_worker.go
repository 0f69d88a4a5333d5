//go:build linux

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// watchRead is what every socket is watched for; the first time its send queue
	// is full, watchWrite is added, so that a tunnel that never fills one is never
	// woken for it.
	watchRead  = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET
	watchWrite = watchRead | unix.EPOLLOUT
	// clearAtOnce is how many aborted tunnels are ended between two rounds of events.
	clearAtOnce = 64
	// wakeEvent marks the event of the worker's own wake descriptor.
	wakeEvent = -1
	// readBuffer is what a read takes; one that fills it turns to splicing.
	readBuffer = 32 << 10
)

// worker moves the bytes of many tunnels from one goroutine: a tunnel costs no
// goroutine, no stack and no buffer of its own while nothing is under way.
type worker struct {
	poll   *os.File        // an epoll set, which the runtime's poller watches in turn
	raw    syscall.RawConn // of poll
	fd     int             // of poll
	events []unix.EpollEvent
	// look reads events, as raw.Read has it; looked is what it found.
	look   func(fd uintptr) (done bool)
	looked struct {
		n   int
		err error
	}
	wake    int // eventfd
	buffer  []byte
	pipes   pipes
	turns   []*tunnel // have something to do
	spare   []*tunnel // the other turns, empty
	pending []pending // of the events just read
	held    int       // bytes that receivers have no room for, pipes aside
	heldMax int
	start   time.Time
	now     time.Duration // since start, of the events just read

	// mu guards what follows. A tunnel's sockets are added to
	// the poll set under it, so that no event finds a tunnel half made.
	mu      sync.Mutex
	tunnels []*tunnel // by slot
	free    []uint32
	live    int
	barred  []*tunnel // aborted, to be ended once nudged
	// arrivals are the tunnels that are not flows yet; while there are any, tick
	// wakes the worker to look for those that take too long.
	arrivals map[*tunnel]struct{}
	tick     *time.Timer
	ticking  bool
	late     []*tunnel // of arrivals, for the worker alone
	gone     bool      // wake is closed
	nudged   bool
	closing  bool
}

// pending is an event that has found its tunnel.
type pending struct {
	tunnel *tunnel
	end    int
	events uint32
}

// newWorker makes a worker with its share of the pipes.
func newWorker(workers int) (*worker, error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		closeDescriptor(poll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Pad: wakeEvent}
	if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, wake, &event); err != nil {
		closeDescriptor(poll)
		closeDescriptor(wake)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err := unix.SetNonblock(poll, true); err != nil { // so that os.NewFile has it polled
		closeDescriptor(poll)
		closeDescriptor(wake)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	file := os.NewFile(uintptr(poll), "relay")
	raw, err := file.SyscallConn()
	if err != nil {
		closeDescriptor(wake)
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), file.Close())
	}
	w := &worker{
		arrivals: map[*tunnel]struct{}{},
		poll:     file, raw: raw, fd: poll, wake: wake,
		events: make([]unix.EpollEvent, 128), buffer: make([]byte, readBuffer),
		start: time.Now(), heldMax: heldMax,
		pipes: pipes{bigMax: max(1, maxBigPipes/workers), smallMax: max(1, maxSmallPipes/workers)},
	}
	w.look = func(uintptr) bool {
		w.looked.n, w.looked.err = epollNow(w.fd, w.events)
		return w.looked.n > 0 || w.looked.err != nil
	}
	w.tick = time.AfterFunc(time.Hour, w.ticked)
	w.tick.Stop()
	return w, nil
}

// add gives a tunnel to the worker.
func (w *worker) add(t *tunnel) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return ErrCut
	}
	if n := len(w.free); n > 0 {
		t.slot, w.free = w.free[n-1], w.free[:n-1]
	} else {
		t.slot = uint32(len(w.tunnels))
		w.tunnels = append(w.tunnels, nil)
	}
	t.worker, t.moved = w, time.Since(w.start)
	for i := range t.ends {
		if t.ends[i].fd < 0 {
			continue // an arrival's upstream, which join brings
		}
		event := t.event(i, watchRead)
		if err := unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, t.ends[i].fd, &event); err != nil {
			w.free, t.worker = append(w.free, t.slot), nil
			return fmt.Errorf("epoll: %w", err) // closing the sockets takes them off
		}
	}
	w.tunnels[t.slot] = t
	w.live++
	if t.arrival != nil {
		w.arrivals[t] = struct{}{}
		w.tickLocked()
	}
	return nil
}

// event is how an end is watched. It names slot, end and descriptor, so that an
// event of a tunnel that is gone is not taken for its successor's.
func (t *tunnel) event(i int, events uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Fd: int32(t.slot), Pad: int32(t.ends[i].fd)<<1 | int32(i)}
}

// load is how many tunnels the worker has.
func (w *worker) load() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live
}

// run moves bytes until close; every tunnel has ended when it returns.
func (w *worker) run() {
	for more := false; ; {
		n, err := w.ready(!more && len(w.turns) == 0)
		if err != nil {
			// EBADF, EFAULT, EINVAL: none can come about, and none can be survived.
			panic(fmt.Sprintf("wait for sockets: %v", err))
		}
		w.now = time.Since(w.start)
		closing := w.find(w.events[:n])
		for _, p := range w.pending {
			p.tunnel.note(p.end, p.events)
		}
		w.turns, w.spare = w.spare, w.turns
		for i, t := range w.spare {
			t.again, w.spare[i] = false, nil
			if t.arrival != nil && !t.arrives() {
				continue
			}
			if over, err := t.step(); over {
				w.finish(t, err)
			}
		}
		w.spare = w.spare[:0]
		w.hurry()
		more = w.clear()
		if closing {
			w.drop()
			return
		}
	}
}

// ready reads the events there are; with wait, it waits for one. The waiting is
// done by the runtime's poller, which watches the epoll set like any descriptor: a
// thread blocked in epoll_wait would keep its processor from the rest of the program
// until the scheduler notices.
func (w *worker) ready(wait bool) (n int, err error) {
	if !wait {
		return epollNow(w.fd, w.events)
	}
	// What look says must not be made anew for every wait.
	err = w.raw.Read(w.look)
	return w.looked.n, cmp.Or(w.looked.err, err)
}

// find looks up the tunnels of the events, and says whether the worker is to end.
func (w *worker) find(events []unix.EpollEvent) (closing bool) {
	w.pending = w.pending[:0]
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		slot, i := uint32(e.Fd), int(e.Pad&1)
		if e.Pad == wakeEvent || int(slot) >= len(w.tunnels) {
			continue
		}
		t := w.tunnels[slot]
		if t == nil || t.ends[i].fd != int(e.Pad>>1) {
			continue
		}
		w.pending = append(w.pending, pending{t, i, e.Events})
	}
	return w.closing
}

// note takes an event down and queues the tunnel for its turn.
func (t *tunnel) note(i int, events uint32) {
	e := &t.ends[i]
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLPRI) != 0 {
		e.readable = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.writable = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.hung = true
	}
	if events&unix.EPOLLPRI != 0 {
		e.urgent = true
	}
	if events&unix.EPOLLERR != 0 {
		e.failed = true
	}
	t.queue()
}

// queue puts the tunnel among those that get a turn, once.
func (t *tunnel) queue() {
	if !t.again {
		t.again = true
		t.worker.turns = append(t.worker.turns, t)
	}
}

// step moves what can be moved of a tunnel, a bounded amount so that the others
// get theirs, and says whether it is over, and how. It holds t.mu, so that whoever
// aborts the tunnel knows that nothing is moved any more.
func (t *tunnel) step() (over bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.aborted != nil { // what is aborted is barred
		return false, nil
	}
	t.moved = t.worker.now
	t.move(clientEnd)
	t.move(upstreamEnd)
	if t.ends[clientEnd].failed {
		t.move(clientEnd) // found while writing to it: what it sent before it went
	}
	for i := range t.ends {
		// The peer is gone: what it had sent has been passed on as far as there
		// was room, and the other side is to learn how it ended.
		if t.ends[i].failed && !t.again {
			return true, resetBy(i)
		}
	}
	return t.ways[clientEnd].done && t.ways[upstreamEnd].done, nil
}

func resetBy(i int) error {
	if i == clientEnd {
		return ErrClientReset
	}
	return ErrUpstreamReset
}

// finish closes a tunnel's sockets, by a reset when err says that it did not end
// in order, and tells its owner.
func (w *worker) finish(t *tunnel, err error) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return
	}
	if t.aborted != nil {
		err = t.aborted
	}
	if err != nil {
		t.reset()
	}
	t.closed = true
	err = errors.Join(err, t.ends[clientEnd].release(), t.ends[upstreamEnd].release())
	t.mu.Unlock()

	for i := range t.ways {
		w.discard(&t.ways[i])
	}
	w.forget(t)
	t.done(err)
}

// forget takes a tunnel off the worker's list.
func (w *worker) forget(t *tunnel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tunnels[t.slot] = nil
	w.free = append(w.free, t.slot)
	w.live--
	delete(w.arrivals, t)
}

// drop ends what is left when the worker closes.
func (w *worker) drop() {
	w.mu.Lock()
	left := append([]*tunnel(nil), w.tunnels...)
	w.mu.Unlock()
	for _, t := range left {
		if t != nil {
			w.finish(t, ErrCut)
		}
	}
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	w.tick.Stop()
	w.pipes.close()
	w.poll.Close()
	closeDescriptor(w.wake)
}

// bar leaves an aborted tunnel to the worker, which ends it at its next nudge: as
// long as there are more to abort, that needs the processors.
func (w *worker) bar(t *tunnel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.barred = append(w.barred, t)
}

// clear ends barred tunnels, a few at a time so that the others get their turns,
// and says whether there are more.
func (w *worker) clear() (more bool) {
	w.mu.Lock()
	if !w.nudged {
		w.mu.Unlock()
		return false
	}
	n := min(len(w.barred), clearAtOnce)
	barred := w.barred[:n]
	if w.barred = w.barred[n:]; len(w.barred) == 0 {
		w.barred, w.nudged = nil, false
	}
	more = w.nudged
	w.mu.Unlock()
	for _, t := range barred {
		w.finish(t, nil) // with what it was aborted for
	}
	return more
}

// close tells the worker to end; run returns soon after.
func (w *worker) close() {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	w.nudge()
}

// nudge makes run go round once. It may not be called after run has returned.
func (w *worker) nudge() {
	w.mu.Lock()
	w.nudged = true
	w.mu.Unlock()
	w.wakeUp()
}

func (w *worker) wakeUp() {
	one := [8]byte{1}
	if _, err := unix.Write(w.wake, one[:]); err != nil {
		// EBADF, EFAULT, EINVAL and a count of 2^64 cannot come about.
		panic(fmt.Sprintf("wake the relay: %v", err))
	}
}
