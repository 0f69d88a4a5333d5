package control

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/exeat/exeat/control/api"
)

// Large bodies are carried out one at a time: what reading and compiling a policy of
// the largest size takes is bounded once, and not once for every connection.
const (
	largeBody = 1 << 20
	// largeWaiting is how many may wait, with most of their body unread; others are
	// refused at once.
	largeWaiting = 8
)

// turnstile lets one large body through at a time.
type turnstile struct {
	waiting, inside chan struct{}
	patience        time.Duration
}

func newTurnstile(patience time.Duration) *turnstile {
	return &turnstile{waiting: make(chan struct{}, largeWaiting), inside: make(chan struct{}, 1), patience: patience}
}

// enter waits for its turn; the error is for the peer.
func (t *turnstile) enter(ctx context.Context) error {
	busy := &api.Error{
		Status: http.StatusServiceUnavailable, Code: api.CodeBusy,
		Message: "large policies are carried out one at a time, and others are before this one: nothing was changed, try again",
	}
	select {
	case t.waiting <- struct{}{}:
	default:
		return busy
	}
	defer func() { <-t.waiting }()
	late := time.NewTimer(t.patience)
	defer late.Stop()
	select {
	case t.inside <- struct{}{}:
		return nil
	case <-late.C:
		return busy
	case <-ctx.Done():
		return ctx.Err()
	}
}

// boundedBody is a request's body that enters the turnstile when it turns out to be
// large.
type boundedBody struct {
	io.ReadCloser
	ctx     context.Context
	through *turnstile
	read    int
	entered bool
}

// Read reads on, once it is its turn.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.read > largeBody && !b.entered {
		if err := b.through.enter(b.ctx); err != nil {
			return 0, err
		}
		b.entered = true
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	return n, err
}

// leave lets the next one through, once the call is over.
func (b *boundedBody) leave() {
	if b.entered {
		<-b.through.inside
	}
}
