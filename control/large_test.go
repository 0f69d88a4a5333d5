package control

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/control/api"
)

func TestLargeBodiesAreReadOneAtATime(t *testing.T) {
	through := newTurnstile(20 * time.Millisecond)
	body := func(n int) *boundedBody {
		return &boundedBody{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat("x", n))), ctx: context.Background(), through: through}
	}
	first := body(2 * largeBody)
	if n, err := io.Copy(io.Discard, first); n != 2*largeBody || err != nil {
		t.Fatalf("the first: %d bytes, %v", n, err)
	}
	if n, err := io.Copy(io.Discard, body(largeBody)); n != largeBody || err != nil {
		t.Errorf("a small one beside it: %d bytes, %v", n, err)
	}
	second := body(2 * largeBody)
	_, err := io.Copy(io.Discard, second)
	var busy *api.Error
	if !errors.As(err, &busy) || busy.Code != api.CodeBusy {
		t.Errorf("the second: %v, want it told that we are busy", err)
	}
	second.leave() // which had not entered
	first.leave()
	third := body(2 * largeBody)
	if _, err := io.Copy(io.Discard, third); err != nil {
		t.Errorf("after the first had left: %v", err)
	}
	third.leave()
}

func TestTooManyLargeBodiesAreRefusedAtOnce(t *testing.T) {
	through := newTurnstile(time.Hour)
	if err := through.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range largeWaiting {
		go func() { ended <- through.enter(ctx) }()
	}
	for len(through.waiting) < largeWaiting {
		time.Sleep(time.Millisecond)
	}
	var busy *api.Error
	if err := through.enter(ctx); !errors.As(err, &busy) {
		t.Errorf("one more: %v, want it refused at once", err)
	}
	cancel()
	for range largeWaiting {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a waiting one: %v", err)
		}
	}
}
