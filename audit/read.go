package audit

import (
	"sync"
	"sync/atomic"
)

// Last is the ID of the newest event, 0 before the first.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ring.last
}

// Read copies events after the given ID into the buffer, oldest first, and says
// how many it copied and how many after that ID the ring no longer had. An ID
// that this log has not reached is another start's, and reads from the oldest,
// as 0 does.
func (l *Log) Read(after uint64, into []Event) (n int, lost uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.readLocked(l.startLocked(after), into)
}

// startLocked resolves what Read says of 0 and of another start's ID.
func (l *Log) startLocked(after uint64) uint64 {
	if after == 0 || after > l.ring.last {
		return l.ring.oldest()
	}
	return after
}

func (l *Log) readLocked(after uint64, into []Event) (n int, lost uint64) {
	if oldest := l.ring.oldest(); after < oldest {
		lost, after = oldest-after, oldest
	}
	for ; n < len(into) && after < l.ring.last; n++ {
		after++
		into[n] = l.ring.get(after)
	}
	return n, lost
}

// wait reads literally after the given ID, once there is something to read. ok is false when
// done says so, or when a closed log has been read to its end.
func (l *Log) wait(after uint64, into []Event, done func() bool) (n int, lost uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for after == l.ring.last && !l.closed && !done() {
		l.grown.Wait()
	}
	if done() || after == l.ring.last {
		return 0, 0, false
	}
	n, lost = l.readLocked(after, into)
	return n, lost, n > 0
}

// Subscription is one reader of the log. A reader that is too slow loses events,
// oldest first, once it is behind by the ring and its buffer.
type Subscription struct {
	log    *Log
	start  uint64
	events chan Event
	lost   atomic.Uint64
	once   sync.Once
	quit   chan struct{}
	done   chan struct{}
}

// Subscribe follows the log from the event after the given ID (see Read); pass
// Last for what is yet to come. The caller closes the subscription.
func (l *Log) Subscribe(after uint64, buffer int) *Subscription {
	s := &Subscription{
		log: l, events: make(chan Event, buffer), quit: make(chan struct{}), done: make(chan struct{}),
	}
	l.mu.Lock()
	s.start = l.startLocked(after)
	l.mu.Unlock()
	go s.run(s.start)
	return s
}

// Start is the ID after which it delivers: whatever is missing from there on was
// lost.
func (s *Subscription) Start() uint64 { return s.start }

// C delivers the events; it is closed by Close, and at the end of a closed log.
func (s *Subscription) C() <-chan Event { return s.events }

// Lost says how many events this reader was too slow for; their IDs are missing
// from what C delivers.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// Close ends the subscription and waits for its goroutine. It may be called
// twice.
func (s *Subscription) Close() {
	s.once.Do(func() {
		close(s.quit)
		s.log.mu.Lock()
		s.log.grown.Broadcast()
		s.log.mu.Unlock()
	})
	<-s.done
}

func (s *Subscription) closing() bool {
	select {
	case <-s.quit:
		return true
	default:
		return false
	}
}

func (s *Subscription) run(after uint64) {
	defer close(s.done)
	defer close(s.events)
	var batch [32]Event
	for {
		n, lost, ok := s.log.wait(after, batch[:], s.closing)
		if !ok {
			return
		}
		s.lost.Add(lost)
		for _, e := range batch[:n] {
			select {
			case s.events <- e:
			case <-s.quit:
				return
			}
		}
		after = batch[n-1].ID
	}
}
