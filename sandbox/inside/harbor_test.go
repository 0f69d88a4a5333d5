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

func TestTheReadyFileIsThereOnlyWhileTheSidecarIsReady(t *testing.T) {
	dir := t.TempDir()
	var ready atomic.Bool
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(socket) }()
	to := client.New(filepath.Join(dir, "s"))
	defer to.Close()
	file := filepath.Join(dir, "ready")
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- keepReady(ctx, to, file) }()
	becomes := func(want bool, when string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(file); (err == nil) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the file is there: %v, %s", !want, when)
			}
		}
	}
	becomes(false, "before it was ready")
	ready.Store(true)
	becomes(true, "once it was ready")
	ready.Store(false)
	becomes(false, "once it was not any more")
	ready.Store(true)
	becomes(true, "once it was ready again")
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	<-served
	becomes(false, "when nobody answers")
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
