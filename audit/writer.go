package audit

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// lineWriter writes the events of a log as JSON lines, in its own time.
type lineWriter struct {
	log  *Log
	out  io.Writer
	done chan struct{}

	mu  sync.Mutex
	err error // of the last write
}

func newLineWriter(l *Log, out io.Writer) *lineWriter {
	return &lineWriter{log: l, out: out, done: make(chan struct{})}
}

func (w *lineWriter) run() {
	defer close(w.done)
	logger := zerolog.New(w)
	batch := make([]Event, 64)
	never := func() bool { return false }
	for after := uint64(0); ; {
		n, lost, ok := w.log.wait(after, batch, never)
		if !ok {
			return
		}
		if lost > 0 {
			w.unwritten(lost)
			logger.Log().EmbedObject(Event{Time: batch[0].Time, Kind: KindLost, Folded: lost}).Send()
		}
		for i := range batch[:n] {
			logger.Log().EmbedObject(batch[i]).Send()
		}
		after = batch[n-1].ID
	}
}

// Write takes one line from zerolog. It reports a failure as Health and not to
// zerolog, which would print it: the next line is tried all the same.
func (w *lineWriter) Write(line []byte) (int, error) {
	n, err := w.out.Write(line)
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	if n < len(line) {
		w.unwritten(1)
	}
	return len(line), nil
}

func (w *lineWriter) unwritten(n uint64) {
	w.log.mu.Lock()
	w.log.stats.Unwritten += n
	w.log.mu.Unlock()
}

func (w *lineWriter) health() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return fmt.Errorf("audit: writing the log: %w", w.err)
	}
	return nil
}

func (w *lineWriter) wait(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.done:
		return w.health()
	case <-timer.C:
		return errors.New("audit: the log's writer is stuck, its last lines are not written")
	}
}
