//go:build linux

package proxy

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// greeter speaks first, then echoes.
func greeter(c *net.TCPConn) {
	if _, err := io.WriteString(c, "220 hello\r\n"); err != nil {
		return
	}
	io.Copy(c, c)
}

func TestServerFirstAtAnAttributedAddress(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.origin("203.0.113.10:22", greeter)
	c := dialTCP(t, r.transparent("203.0.113.10:22"))
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil || line != "220 hello\r\n" {
		t.Fatalf("read %q, %v", line, err)
	}
	if _, err := io.WriteString(c, "EHLO\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err = in.ReadString('\n'); err != nil || line != "EHLO\r\n" {
		t.Fatalf("read %q, %v", line, err)
	}
	e := r.log.decision(t)
	if e.Verdict != policy.Allow || e.Channel != audit.ChannelOpaque || e.Name != "allowed.test" || e.Reason != policy.ReasonRule {
		t.Errorf("decision %+v", e)
	}
}

func TestClientFirstOpaqueAtAnAttributedAddress(t *testing.T) {
	for _, first := range []string{"SSH-2.0-test\r\n", "\x00\x01\x02\x03", "USER me\r\n", "HELP\r\n", "AB", "\x80\x2e\x01\x00\x02"} {
		t.Run(first, func(t *testing.T) {
			r := newRig(t, onlyAllowed)
			r.host("allowed.test", true, "203.0.113.10")
			r.origin("203.0.113.10:2222", func(c *net.TCPConn) { io.Copy(c, c) })
			c := dialTCP(t, r.transparent("203.0.113.10:2222"))
			if _, err := io.WriteString(c, first); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, len(first))
			if _, err := io.ReadFull(c, b); err != nil || string(b) != first {
				t.Errorf("read %q, %v", b, err)
			}
		})
	}
}

func TestASilentConnectionToAnAllowedNameWaits(t *testing.T) {
	r := newRig(t, onlyAllowed, func(c *Config) { c.Limits.SniffTimeout = 50 * time.Millisecond })
	r.host("allowed.test", true, "203.0.113.10")
	answer := make(chan struct{})
	r.origin("203.0.113.10:22", func(c *net.TCPConn) {
		<-answer
		greeter(c)
	})
	c := dialTCP(t, r.transparent("203.0.113.10:22"))
	if err := c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !isTimeout(err) {
		t.Fatalf("read: %v, want nothing yet", err)
	}
	close(answer)
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "220 hello\r\n" {
		t.Errorf("read %q, %v", line, err)
	}
}

func TestBytesThatNeitherHTTPNorTLSAreReset(t *testing.T) {
	cases := []struct {
		name, document, dst string
		send                string
		reason              policy.Reason
		channel             audit.Channel
	}{
		{"opaque bytes on 443 at an allowed address (B58)", onlyAllowed, "203.0.113.10:443", "\x00\x01\x02\x03", policy.ReasonMalformed, audit.ChannelOpaque},
		{"opaque bytes on 80 (B58)", onlyAllowed, "203.0.113.10:80", "\x05\x01\x00", policy.ReasonMalformed, audit.ChannelOpaque},
		{"SSLv2 on 443 (B55)", onlyAllowed, "203.0.113.10:443", "\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10", policy.ReasonMalformed, audit.ChannelOpaque},
		{"SSH on 443", onlyAllowed, "203.0.113.10:443", "SSH-2.0-x\r\n", policy.ReasonMalformed, audit.ChannelOpaque},
		{"opaque bytes to an address nobody was told of", onlyAllowed, "203.0.113.50:22", "SSH-2.0-x\r\n", policy.ReasonNotAttributable, audit.ChannelOpaque},
		{"silence on 443", onlyAllowed, "203.0.113.10:443", "", policy.ReasonLimit, audit.ChannelOpaque},
		{"silence without a network", `"no-network"`, "203.0.113.10:22", "", policy.ReasonMode, audit.ChannelOpaque},
		{"opaque without a network", `"no-network"`, "203.0.113.10:22", "SSH-2.0-x\r\n", policy.ReasonMode, audit.ChannelOpaque},
		{"a denied address", `{"network_mode":"denylist","denied_hosts":["203.0.113.10"]}`, "203.0.113.10:22", "SSH-2.0-x\r\n", policy.ReasonDenied, audit.ChannelOpaque},
		{"an address attributed to denied names only", `{"network_mode":"denylist","denied_hosts":["allowed.test"]}`, "203.0.113.10:22", "SSH-2.0-x\r\n", policy.ReasonDenied, audit.ChannelOpaque},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.document, func(c *Config) { c.Limits.SniffTimeout = 200 * time.Millisecond })
			r.host("allowed.test", true, "203.0.113.10")
			r.origin("203.0.113.10:22", greeter)
			start := time.Now()
			c := dialTCP(t, r.transparent(tc.dst))
			if _, err := io.WriteString(c, tc.send); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) || len(b) > 0 {
				t.Errorf("read %q, %v, want a reset", b, err)
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("the denial took %v", d)
			}
			e := r.log.decision(t)
			if e.Verdict != policy.Deny || e.Reason != tc.reason || e.Channel != tc.channel {
				t.Errorf("decision %+v", e)
			}
			if dials := r.dials(); len(dials) > 0 {
				t.Errorf("dialled %v", dials)
			}
		})
	}
}

func TestAnAddressTargetOpensWhateverIsSpoken(t *testing.T) {
	document := `{"network_mode":"allowlist","allowed_hosts":["203.0.113.10"]}`
	carved := `{"network_mode":"allowlist","allowed_hosts":["203.0.113.10"],"denied_hosts":["evil.test"]}`
	cases := []struct{ name, document, dst, send, want string }{
		{"server first on 443", document, "203.0.113.10:443", "", "220 hello\r\n"},
		{"opaque on 443", document, "203.0.113.10:443", "\x00\x01", "220 hello\r\n\x00\x01"},
		{"opaque on 80 beside a denied name", carved, "203.0.113.10:80", "\x00\x01", "220 hello\r\n\x00\x01"},
		{"server first beside a denied name", carved, "203.0.113.10:22", "", "220 hello\r\n"},
		{"half a TLS record", document, "203.0.113.10:443", "\x16\x03", "220 hello\r\n\x16\x03"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.document)
			r.origin(tc.dst, greeter)
			c := dialTCP(t, r.transparent(tc.dst))
			if _, err := io.WriteString(c, tc.send); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, len(tc.want))
			if _, err := io.ReadFull(c, b); err != nil || string(b) != tc.want {
				t.Errorf("read %q, %v", b, err)
			}
			if e := r.log.decision(t); e.Verdict != policy.Allow || e.Rule != "203.0.113.10" {
				t.Errorf("decision %+v", e)
			}
		})
	}
}

func TestACarveOutHoldsAtAnAllowedAddress(t *testing.T) {
	r := newRig(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.10"],"denied_hosts":["evil.test"]}`)
	r.origin("203.0.113.10:443", tlsEcho(newCertificates(t, "evil.test"), "hi\n"))
	conn := tls.Client(dialTCP(t, r.transparent("203.0.113.10:443")), &tls.Config{ServerName: "evil.test"})
	if err := conn.Handshake(); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("handshake: %v", err)
	}
	if e := r.log.decision(t); e.Reason != policy.ReasonDenied || e.Rule != "evil.test" {
		t.Errorf("decision %+v", e)
	}
}

func TestOurOwnAddressesAreNeverDialled(t *testing.T) {
	cases := []struct{ name, document, dst string }{
		{"loopback in public mode (B37)", `"public"`, "127.0.0.1:9"},
		{"v6 loopback", `"public"`, "[::1]:9"},
		{"unspecified", `"public"`, "0.0.0.0:9"},
		{"what is declared local", `"public"`, "198.51.100.1:9"},
		{"what is declared local, under an address target", `{"network_mode":"allowlist","allowed_hosts":["198.51.100.0/24"]}`, "198.51.100.1:9"},
		{"loopback, under a target that means the internet", everywhere, "127.0.0.1:9"},
		{"v6 loopback, under a target that means the internet", everywhere, "[::1]:9"},
		{"unspecified, under a target that means the internet", everywhere, "0.0.0.0:9"},
		{"loopback, under half of the internet", `{"network_mode":"allowlist","allowed_hosts":["0.0.0.0/1"]}`, "127.0.0.1:9"},
		{"the listener itself", `"public"`, ""},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.document, func(c *Config) { c.Local = isTestLocal })
			wantReset(t, r.transparent(tc.dst))
			if e := r.log.decision(t); e.Verdict != policy.Deny || e.Reason != policy.ReasonSpecialAddress {
				t.Errorf("decision %+v", e)
			}
			if dials := r.dials(); len(dials) > 0 {
				t.Errorf("dialled %v", dials)
			}
		})
	}
}

const everywhere = `{"network_mode":"allowlist","allowed_hosts":["0.0.0.0/0","::/0","allowed.test"]}`

func TestLoopbackIsOpenedByATargetThatMeansIt(t *testing.T) {
	for _, target := range []string{"127.0.0.0/8", "127.0.0.1", "127.0.0.1:9"} {
		r := newRig(t, `{"network_mode":"allowlist","allowed_hosts":["0.0.0.0/0","`+target+`"]}`)
		r.origin("127.0.0.1:9", greeter)
		if line, err := bufio.NewReader(dialTCP(t, r.transparent("127.0.0.1:9"))).ReadString('\n'); err != nil {
			t.Errorf("%s: read %q, %v", target, line, err)
		}
	}
}

func TestANameLeadsToNoLoopbackUnderATargetThatMeansTheInternet(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1", "0.0.0.0"} {
		r := newRig(t, everywhere)
		r.host("allowed.test", false, addr)
		if _, _, resp := connectTo(t, r.explicit(), "allowed.test:22"); resp.StatusCode != 403 {
			t.Errorf("%s: %s", addr, resp.Status)
		}
		if dials := r.dials(); len(dials) > 0 {
			t.Errorf("%s: dialled %v", addr, dials)
		}
	}
}

func TestTooManyConnectionsAreReset(t *testing.T) {
	r := newRig(t, `"public"`, func(c *Config) { c.Limits.MaxConns = 1 })
	r.origin("203.0.113.10:22", greeter)
	at := r.transparent("203.0.113.10:22")
	first := dialTCP(t, at)
	if _, err := bufio.NewReader(first).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	wantReset(t, at)
	r.log.find(t, "limit", func(e audit.Event) bool { return e.Reason == policy.ReasonLimit })
	first.Close()
	r.log.find(t, "flow", func(e audit.Event) bool { return e.Kind == audit.KindFlow })
	third := dialTCP(t, at)
	if line, err := bufio.NewReader(third).ReadString('\n'); err != nil {
		t.Errorf("third read %q, %v", line, err)
	}
}

func TestASwapCutsWhatItForbids(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.origin("203.0.113.10:22", greeter)
	c := dialTCP(t, r.transparent("203.0.113.10:22"))
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if n := r.flows.Rejudge(r.swap(onlyAllowed)); n != 0 {
		t.Errorf("%d cut by a policy that allows it", n)
	}
	if n := r.flows.Rejudge(r.swap(`"no-network"`)); n != 1 {
		t.Errorf("%d cut, want 1", n)
	}
	if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
	r.log.find(t, "revoked", func(e audit.Event) bool { return e.Reason == policy.ReasonRevoked })
}

func TestANameShownInPublicDoesNotOutliveItWhereTheClientChoseTheAddress(t *testing.T) {
	cert := newCertificates(t, "allowed.test")
	for _, tc := range []struct {
		name       string
		attributed bool
		cut        int
	}{
		{"an address that we resolved stays", true, 0},
		{"an address of the client's own is cut", false, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, `"public"`)
			r.host("allowed.test", tc.attributed, "203.0.113.66")
			r.origin("203.0.113.66:443", tlsEcho(cert, "hi\n"))
			conn := tls.Client(dialTCP(t, r.transparent("203.0.113.66:443")), &tls.Config{ServerName: "allowed.test", RootCAs: cert.pool})
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
				t.Fatal(line, err)
			}
			if e := r.log.decision(t); e.Name != "allowed.test" || e.Reason != policy.ReasonMode {
				t.Errorf("decision %+v", e)
			}
			if n := r.flows.Rejudge(r.swap(onlyAllowed)); n != tc.cut {
				t.Errorf("%d cut, want %d", n, tc.cut)
			}
		})
	}
}

// wantReset connects to a listener that resets at once, possibly before connect
// has returned.
func wantReset(t *testing.T, at string) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err == nil {
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(c)
	}
	if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%v, want a reset", err)
	}
}
