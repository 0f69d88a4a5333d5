package dnsfilter

import (
	"sync"
	"time"
)

// Failures are remembered for a second, so that a client that insists does not
// load an upstream that is down (RFC 9520 section 3.2).
const (
	failureTTL   = time.Second
	failuresKept = 1000
)

// failures are what lately could not be answered. Where there are too many, some
// other gives way.
type failures struct {
	mu sync.Mutex
	of map[key]failure
}

type failure struct {
	err     error
	expires time.Time
}

// get gives why k could not be answered of late; nil where nothing is known of it.
func (f *failures) get(k key, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if found := f.of[k]; now.Before(found.expires) {
		return found.err
	}
	return nil
}

func (f *failures) put(k key, err error, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, there := f.of[k]; !there && len(f.of) >= failuresKept {
		for other := range f.of {
			delete(f.of, other)
			break
		}
	}
	f.of[k] = failure{err, now.Add(failureTTL)}
}
