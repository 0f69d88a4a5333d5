//go:build linux

package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"testing"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// TestAFlowAdmittedDuringASwapDoesNotLiveOn swaps between the verdict and the
// registration, when the swap itself cannot see the flow (perf.md, learned 7).
func TestAFlowAdmittedDuringASwapDoesNotLiveOn(t *testing.T) {
	cases := []struct {
		name, dst string
		use       func(at string) error
	}{
		{"TLS", "203.0.113.10:443", func(at string) error {
			return tls.Client(dialTCP(t, at), &tls.Config{ServerName: "allowed.test"}).Handshake()
		}},
		{"HTTP/1", "203.0.113.10:80", func(at string) error {
			c := dialTCP(t, at)
			if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n")); err != nil {
				return err
			}
			_, err := c.Read(make([]byte, 1))
			return err
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			var r *rig
			r = newRig(t, onlyAllowed, func(c *Config) {
				dial, connect := c.Dial, c.Connect
				c.Connect = func(to netip.AddrPort) (int, error) {
					fd, err := connect(to)
					r.flows.Rejudge(r.swap(`"no-network"`))
					return fd, err
				}
				c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := dial(ctx, network, address)
					r.flows.Rejudge(r.swap(`"no-network"`))
					return conn, err
				}
			})
			r.host("allowed.test", true, "203.0.113.10")
			read := make(chan int, 1)
			r.origin(tc.dst, func(c *net.TCPConn) {
				n, err := c.Read(make([]byte, 1))
				if err == nil {
					t.Error("a byte came through")
				}
				read <- n
			})
			if err := tc.use(r.transparent(tc.dst)); err == nil {
				t.Error("it passed")
			}
			if n := <-read; n > 0 {
				t.Errorf("the upstream read %d bytes", n)
			}
			r.log.find(t, "revoked", func(e audit.Event) bool { return e.Kind == audit.KindFlow && e.Reason == policy.ReasonRevoked })
		})
	}
}

// TestASwapCutsOnlyWhatItForbids narrows an allowlist under two HTTP connections.
func TestASwapCutsOnlyWhatItForbids(t *testing.T) {
	r := newWebRig(t, whoAmI)
	r.host("a.wild.test", true, "203.0.113.11")
	r.web("203.0.113.11:80", whoAmI)
	stays, goes := r.client(r.transparent("203.0.113.10:80")), r.client(r.transparent("203.0.113.11:80"))
	get(t, stays, "http://allowed.test/")
	get(t, goes, "http://a.wild.test/")
	if n := r.flows.Rejudge(r.swap(`{"network_mode":"allowlist","allowed_hosts":["allowed.test"]}`)); n != 1 {
		t.Errorf("%d cut, want 1", n)
	}
	if resp, _ := get(t, stays, "http://allowed.test/"); resp.StatusCode != 200 {
		t.Errorf("what stays: %s", resp.Status)
	}
	if n := len(r.dials()); n != 2 {
		t.Errorf("%d dials, want the first two", n)
	}
	if resp, _ := get(t, goes, "http://a.wild.test/"); resp.StatusCode != 403 {
		t.Errorf("what goes: %s", resp.Status)
	}
}
