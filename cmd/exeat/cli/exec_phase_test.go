//go:build !image

package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/exeat/exeat/control/client"
)

// TestAPhaseWhoseAnswerIsMissingIsLeft: an interrupt may come after the sandbox has
// entered the phase, and before it has said so.
func TestAPhaseWhoseAnswerIsMissingIsLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	var mu sync.Mutex
	var asked []string
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.URL.Path)
		mu.Unlock()
		if r.URL.Path == "/v1/phases/setup" {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			interrupt()
			<-r.Context().Done() // entered, and never answered
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if _, err := io.WriteString(w, `{"generation": 3}`); err != nil {
			t.Error(err)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	s := &streams{err: io.Discard, out: io.Discard}
	err = s.inPhase(ctx, guarded{Client: client.New(path)}, execFlags{phase: "setup", then: "run", lease: time.Minute}, func(context.Context) error {
		t.Error("the command was run")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was interrupted", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(asked, []string{"POST /v1/phases/setup", "POST /v1/phases/run"}) {
		t.Errorf("asked %q", asked)
	}
}
