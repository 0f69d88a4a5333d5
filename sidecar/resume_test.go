//go:build linux

package sidecar_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/exeat/exeat/sidecar"
)

// TestAnEngineThatResumesDecidesAtOnceAndOpensNothingYet: the kernel holds what the
// worker before put in force, but not yet what this one adds.
func TestAnEngineThatResumesDecidesAtOnceAndOpensNothingYet(t *testing.T) {
	s := &steps{holding: make(chan struct{}), entered: make(chan struct{})}
	e := rawEngine(t, s, func(c *sidecar.Config) {
		c.Policy = document(t, `{"network_mode":"allowlist","allowed_hosts":["a.test"]}`)
		c.Generation = 7
	})
	e.Resume()
	if c := s.inForce.Load(); c == nil || c.Generation() != 7 {
		t.Fatalf("resumed with %v, want generation 7", c)
	}
	opened := make(chan error, 1)
	go func() {
		opened <- e.Attribute(t.Context(), "a.test", []netip.Addr{netip.MustParseAddr("192.0.2.1")}, time.Minute)
	}()
	began, entered := make(chan error, 1), s.entered
	go func() { began <- e.Begin(t.Context()) }()
	<-entered
	select {
	case err := <-opened:
		t.Errorf("an address was opened before the rules were in force: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(s.holding)
	if err := <-began; err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil || len(s.opened) != 1 {
		t.Errorf("opened %v, %v", s.opened, err)
	}
	if state := e.Policy(); state.Generation != 7 {
		t.Errorf("generation %d, want 7", state.Generation)
	}
}
