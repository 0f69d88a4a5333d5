package inside

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exeat/exeat/control/client"
)

// serveReadiness answers at a socket as ready says.
func serveReadiness(t *testing.T, ready *atomic.Bool) (socket string, server *http.Server) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return socket, server
}

// becomes waits until the file is there, or is not.
func becomes(t *testing.T, file string, want bool, when string) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(file); (err == nil) == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the file is there: %v, %s", !want, when)
		}
	}
}

func TestTheReadyFileIsThereOnlyWhileTheSidecarIsReady(t *testing.T) {
	var ready atomic.Bool
	socket, server := serveReadiness(t, &ready)
	to := client.New(socket)
	defer to.Close()
	file := filepath.Join(t.TempDir(), "ready")
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- keepReady(ctx, to, file) }()
	becomes(t, file, false, "before it was ready")
	ready.Store(true)
	becomes(t, file, true, "once it was ready")
	ready.Store(false)
	becomes(t, file, false, "once it was not any more")
	ready.Store(true)
	becomes(t, file, true, "once it was ready again")
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	becomes(t, file, false, "when nobody answers")
	stop()
	if err := <-kept; err != nil {
		t.Error(err)
	}
}

func TestTheReadyFileIsRemovedAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "ready")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	to := client.New(filepath.Join(dir, "nobody"))
	defer to.Close()
	if err := keepReady(ctx, to, file); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("it is left")
	}
}

func TestAnAllowlistOfNothingIsNotPublic(t *testing.T) {
	args, err := harborArgs("allowlist", " ")
	if err != nil || !slices.Equal(args[len(args)-2:], []string{"--mode", "allowlist"}) {
		t.Errorf("%v, %v", args, err)
	}
}
