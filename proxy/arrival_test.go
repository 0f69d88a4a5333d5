//go:build linux

package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
)

// TestArrivals is the ways of a connection that has no goroutine to one.
func TestArrivals(t *testing.T) {
	hello := clientHelloOf(t, &tls.Config{ServerName: "allowed.test"})
	whole := func(c *net.TCPConn) error { _, err := c.Write(hello); return err }
	passes := func(t *testing.T, c *net.TCPConn) {
		t.Helper()
		got := make([]byte, 3)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "220" {
			t.Errorf("read %q, %v", got, err)
		}
	}
	isReset := func(t *testing.T, c *net.TCPConn) {
		t.Helper()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("read: %v, want a reset", err)
		}
	}
	cases := map[string]struct {
		first, second string // what is at the two addresses of the name: here, silent, or nothing; none: there is no second
		send          func(c *net.TCPConn) error
		want          func(t *testing.T, c *net.TCPConn)
		failures      int
	}{
		"an upstream that answers": {"here", "", whole, passes, 0},
		"a ClientHello in pieces": {"here", "", func(c *net.TCPConn) error {
			return inPieces(c, hello, 3)
		}, passes, 0},
		"a ClientHello in more pieces than are waited for": {"here", "", func(c *net.TCPConn) error {
			return inPieces(c, hello, 3*arrivalReads)
		}, passes, 0},
		"a client that is silent for longer than is waited for": {"here", "", func(c *net.TCPConn) error {
			time.Sleep(arrivalPatience + 200*time.Millisecond)
			return whole(c)
		}, passes, 0},
		"an address that refuses, and another":     {"", "here", whole, passes, 0},
		"an address that is silent, and another":   {"silent", "here", whole, passes, 0},
		"addresses that refuse":                    {"", "", whole, isReset, 1},
		"the only address refuses":                 {"", "none", whole, isReset, 1},
		"the only address is silent":               {"silent", "none", whole, isReset, 1},
		"a client that goes while it is connected": {"silent", "", func(c *net.TCPConn) error { return errors.Join(whole(c), c.CloseWrite()) }, isReset, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, onlyAllowed, func(c *Config) { c.Limits.DialTimeout = 2 * time.Second })
			addrs := []string{"203.0.113.10", "203.0.113.11"}
			if tc.second == "none" {
				addrs = addrs[:1]
			}
			r.host("allowed.test", true, addrs...)
			for i, what := range []string{tc.first, tc.second}[:len(addrs)] {
				switch at := addrs[i] + ":443"; what {
				case "here":
					r.origin(at, greeter)
				case "silent":
					r.place(at, "silence")
				}
			}
			c := dialTCP(t, r.transparent(addrs[0]+":443"))
			if err := tc.send(c); err != nil {
				t.Fatal(err)
			}
			tc.want(t, c)
			r.log.find(t, "of the decision", func(e audit.Event) bool { return e.Kind == audit.KindDecision })
			if n := len(r.log.decisions()); n != 1 {
				t.Errorf("%d decisions, want 1", n)
			}
			failures := 0
			if tc.failures > 0 {
				r.log.find(t, "of the failure", func(e audit.Event) bool { return e.Kind == audit.KindError })
			}
			r.log.mu.Lock()
			for _, e := range r.log.events {
				if e.Kind == audit.KindError {
					failures++
				}
			}
			r.log.mu.Unlock()
			if failures != tc.failures {
				t.Errorf("%d failures recorded, want %d", failures, tc.failures)
			}
		})
	}
}

// inPieces writes b in n segments.
func inPieces(c *net.TCPConn, b []byte, n int) error {
	for i := range n {
		if _, err := c.Write(b[i*len(b)/n : (i+1)*len(b)/n]); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// TestArrivalsEndWithTheListener: the rig checks that serving ends.
func TestArrivalsEndWithTheListener(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.place("203.0.113.10:443", "silence")
	at := r.transparent("203.0.113.10:443")
	silent, connecting := dialTCP(t, at), dialTCP(t, at)
	if _, err := connecting.Write(clientHelloOf(t, &tls.Config{ServerName: "allowed.test"})); err != nil {
		t.Fatal(err)
	}
	r.log.decision(t)
	r.cancel()
	for _, c := range []*net.TCPConn{silent, connecting} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("read: %v, want a reset", err)
		}
	}
}
