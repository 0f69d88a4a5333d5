//go:build linux

package proxy

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// turnBytes is what one direction moves before other tunnels get their turn.
	turnBytes = 4 << 20
	// bulkLeave: a turn that spliced less than this goes back to reading, which is
	// cheaper for little.
	bulkLeave = 16 << 10
	// heldMax bounds what one worker holds for receivers that have no room; beyond
	// it only heldRead is read at a time, so that a client that opens thousands of
	// downloads and reads none of them costs little.
	heldMax  = 16 << 20
	heldRead = 2 << 10
)

// move passes on what is there in one direction, until the sender has no more,
// the receiver has no room, or the turn is used up.
func (t *tunnel) move(from int) {
	src, dst, way := &t.ends[from], &t.ends[1-from], &t.ways[from]
	for moved := 0; !way.done; {
		if moved >= turnBytes {
			t.queue()
			return
		}
		switch {
		case way.pipe != nil || len(way.rest) > 0:
			if !dst.writable {
				return
			}
			moved += t.flush(from)
		case way.ended:
			t.finishWay(from)
		case !src.readable || !dst.writable:
			return
		case way.bulk && !src.urgent:
			t.fill(from, moved)
		default:
			moved += t.copy(from)
		}
	}
}

// finishWay ends one direction, by a half-close. A sender that failed has not
// ended in order, though its socket reads as if: its receiver gets a reset, and
// must not see an orderly end before it.
func (t *tunnel) finishWay(from int) {
	t.ways[from].done = true
	if t.ends[from].failed || t.ways[1-from].done {
		return // in the latter case both sockets are about to be closed, which says it too
	}
	if errno := finishSending(t.ends[1-from].fd); errno != 0 {
		t.ends[1-from].failed = true // ENOTCONN: the receiver is gone
	}
}

// copy reads what is there and writes it on. A short read has emptied the
// socket, unless out-of-band data cut it short or the end is near.
func (t *tunnel) copy(from int) int {
	src, way, buffer := &t.ends[from], &t.ways[from], t.worker.buffer
	if t.worker.held >= t.worker.heldMax {
		buffer = buffer[:heldRead]
	}
	n, errno := readInto(src.fd, buffer)
	switch {
	case errno == syscall.EAGAIN:
		src.readable, src.urgent = false, false
		return 0
	case errno != 0:
		t.broke(from)
		return 0
	case n == 0:
		t.ended(from)
		return 0
	case n == len(buffer):
		way.bulk = n == readBuffer
	case !src.urgent && !src.hung:
		src.readable = false
	}
	sent := t.send(from, buffer[:n])
	if rest := buffer[sent:n]; len(rest) > 0 && !way.done {
		way.rest = append([]byte(nil), rest...)
		t.worker.held += len(rest)
	}
	return sent
}

// fill splices what is there into a pipe.
func (t *tunnel) fill(from, moved int) {
	src, way, pipes := &t.ends[from], &t.ways[from], &t.worker.pipes
	p := pipes.take()
	if p == nil {
		way.bulk = false // this once: the next full buffer tries again
		return
	}
	n, errno := spliceBytes(src.fd, p.write, p.size)
	if n > 0 && errno == 0 {
		p.held, way.pipe = n, p
		return
	}
	pipes.put(p)
	switch errno {
	case 0:
		t.ended(from)
	case syscall.EAGAIN:
		src.readable = false
		if moved < bulkLeave {
			way.bulk = false
		}
	default:
		t.broke(from)
	}
}

// flush writes on what a full send queue had held up.
func (t *tunnel) flush(from int) int {
	dst, way := &t.ends[1-from], &t.ways[from]
	if way.pipe == nil {
		sent := t.send(from, way.rest)
		t.worker.held -= sent
		if way.rest = way.rest[sent:]; len(way.rest) == 0 {
			way.rest = nil
		}
		return sent
	}
	n, errno := spliceBytes(way.pipe.read, dst.fd, way.pipe.held)
	if errno != 0 {
		t.blocked(from, errno)
		return 0
	}
	t.count(from, n)
	if way.pipe.held -= n; way.pipe.held == 0 {
		t.worker.pipes.put(way.pipe)
		way.pipe = nil
	}
	return n
}

// send writes as much as there is room for.
func (t *tunnel) send(from int, p []byte) (sent int) {
	for sent < len(p) {
		n, errno := sendFrom(t.ends[1-from].fd, p[sent:])
		if errno != 0 {
			t.blocked(from, errno)
			break
		}
		sent += n
	}
	t.count(from, sent)
	return sent
}

func (t *tunnel) count(from, n int) {
	if from == clientEnd {
		t.flow.out.Add(uint64(n))
	} else {
		t.flow.in.Add(uint64(n))
	}
}

// blocked says why a write failed: no room, which ends by an event, or the
// receiver is gone. Then this direction is over, and the other is read to its
// end, for what the receiver sent before it went.
func (t *tunnel) blocked(from int, errno syscall.Errno) {
	dst := &t.ends[1-from]
	if errno != syscall.EAGAIN {
		dst.failed, dst.readable = true, true
		t.ways[from].done = true
		return
	}
	dst.writable = false
	if dst.watched {
		return
	}
	// Asking for the event also reports it where there is room again already.
	event := t.event(1-from, watchWrite)
	if err := unix.EpollCtl(t.worker.fd, unix.EPOLL_CTL_MOD, dst.fd, &event); err != nil {
		dst.failed = true
		t.ways[from].done = true
		return
	}
	dst.watched = true
}

// ended: the sender has sent its last byte.
func (t *tunnel) ended(from int) {
	t.ends[from].readable = false
	t.ways[from].ended = true
}

// broke: the sender's connection is gone. The receiver is told by a reset.
func (t *tunnel) broke(from int) {
	t.ends[from].readable, t.ends[from].failed = false, true
	t.ways[from].done = true
}

// discard drops what was under way.
func (w *worker) discard(of *way) {
	if of.pipe != nil {
		w.pipes.put(of.pipe)
	}
	w.held -= len(of.rest)
	*of = way{done: true}
}
