//go:build linux

package proxy

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// TestAnAcceptorInARowLetsOthersHaveTheirTurn: a goroutine whose socket was ready
// before gets to it while there is always something else to run.
func TestAnAcceptorInARowLetsOthersHaveTheirTurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	turns, err := newTurns()
	if err != nil {
		t.Fatal(err)
	}
	defer turns.close()
	there, here := tcpPair(t)
	defer there.Close()
	defer here.Close()
	var stop atomic.Bool
	var heard atomic.Int64
	busy, reader := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(busy)
		for !stop.Load() {
			runtime.Gosched()
		}
	}()
	go func() {
		defer close(reader)
		for b := make([]byte, 1); ; heard.Add(1) {
			if _, err := here.Read(b); err != nil {
				return
			}
		}
	}()
	for i := range int64(20) {
		if _, err := there.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		// The poller tells of several sockets in no particular order: two turns.
		for range 2 * acceptedInARow {
			if err := turns.taken(false); err != nil {
				t.Fatal(err)
			}
		}
		if got := heard.Load(); got != i+1 {
			t.Fatalf("after %d bytes and two turns each the reader has had %d", i+1, got)
		}
	}
	stop.Store(true)
	<-busy
	if err := there.Close(); err != nil {
		t.Fatal(err)
	}
	<-reader
}

// TestATurnThatCannotBeTakenIsAnError, and does not hang.
func TestATurnThatCannotBeTakenIsAnError(t *testing.T) {
	turns, err := newTurns()
	if err != nil {
		t.Fatal(err)
	}
	if err := turns.close(); err != nil {
		t.Fatal(err)
	}
	for range acceptedInARow - 1 {
		if err := turns.taken(false); err != nil {
			t.Errorf("within a turn: %v", err)
		}
	}
	if err := turns.taken(false); err == nil {
		t.Error("no error of a turn at a descriptor that is closed")
	}
	if err := turns.taken(true); err != nil {
		t.Errorf("after a wait: %v", err)
	}
}
