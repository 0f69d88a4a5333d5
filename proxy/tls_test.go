//go:build linux

package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

const onlyAllowed = `{"network_mode":"allowlist","allowed_hosts":["allowed.test","*.wild.test"]}`

// tlsEcho serves TLS and echoes lines.
func tlsEcho(cert certificates, greeting string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert.cert}})
		if _, err := io.WriteString(s, greeting); err != nil {
			return
		}
		io.Copy(s, s)
	}
}

func TestTLSIsJudgedByItsServerNameAndDialledToOurAddress(t *testing.T) {
	cert := newCertificates(t, "allowed.test", "evil.test", "a.wild.test")
	cases := []struct {
		name   string
		dst    string
		sni    string
		greets string // "" is denied
		alert  string
		reason policy.Reason
	}{
		{"an allowed name at its own address", "203.0.113.10:443", "allowed.test", "ten", "", policy.ReasonRule},
		{"an allowed name, attacker's address (B50): ours is dialled", "203.0.113.66:443", "allowed.test", "ten", "", policy.ReasonRule},
		{"a wildcard", "203.0.113.11:443", "a.wild.test", "eleven", "", policy.ReasonRule},
		{"an unlisted name at an allowed address", "203.0.113.10:443", "evil.test", "", "unrecognized name", policy.ReasonUnlisted},
		{"a suffix trick (B59)", "203.0.113.10:443", "evilallowed.test", "", "unrecognized name", policy.ReasonUnlisted},
		{"no server name (B55)", "203.0.113.10:443", "", "", "unrecognized name", policy.ReasonNoServerName},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, onlyAllowed)
			r.host("allowed.test", true, "203.0.113.10")
			r.host("a.wild.test", false, "203.0.113.11")
			r.origin("203.0.113.10:443", tlsEcho(cert, "ten\n"))
			r.origin("203.0.113.11:443", tlsEcho(cert, "eleven\n"))
			r.origin("203.0.113.66:443", tlsEcho(cert, "attacker\n"))
			conn := tls.Client(dialTCP(t, r.transparent(tc.dst)), &tls.Config{
				ServerName: tc.sni, RootCAs: cert.pool, InsecureSkipVerify: tc.sni == "",
			})
			line, err := bufio.NewReader(conn).ReadString('\n')
			if tc.greets != "" && (err != nil || line != tc.greets+"\n") {
				t.Errorf("read %q, %v, want %q", line, err, tc.greets)
			}
			if tc.greets == "" && (err == nil || !strings.Contains(err.Error(), tc.alert)) {
				t.Errorf("read %q, %v, want alert %q", line, err, tc.alert)
			}
			e := r.log.decision(t)
			if e.Reason != tc.reason || e.Channel != audit.ChannelTLS || e.Name != tc.sni || e.Generation != 1 {
				t.Errorf("decision %+v", e)
			}
			if n := len(r.log.decisions()); n != 1 {
				t.Errorf("%d decisions, want one", n)
			}
		})
	}
}

func TestAlertsDifferByReason(t *testing.T) {
	cases := []struct {
		name, document, want string
		reason               policy.Reason
	}{
		{"no-network says access denied", `"no-network"`, "access denied", policy.ReasonMode},
		{"a carve-out says access denied", `{"network_mode":"denylist","denied_hosts":["evil.test"]}`, "access denied", policy.ReasonDenied},
		{"an unlisted name is not recognised", onlyAllowed, "unrecognized name", policy.ReasonUnlisted},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.document)
			conn := tls.Client(dialTCP(t, r.transparent("203.0.113.10:443")), &tls.Config{ServerName: "evil.test"})
			if err := conn.Handshake(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("handshake: %v, want %q", err, tc.want)
			}
			if e := r.log.decision(t); e.Reason != tc.reason || e.Name != "evil.test" {
				t.Errorf("decision %+v", e)
			}
		})
	}
}

func TestWithoutAPolicyNothingGetsOut(t *testing.T) {
	r := newRig(t, `"public"`)
	r.policy.Store(nil)
	conn := tls.Client(dialTCP(t, r.transparent("203.0.113.10:443")), &tls.Config{ServerName: "allowed.test"})
	if err := conn.Handshake(); err == nil {
		t.Error("handshake passed")
	}
	if e := r.log.decision(t); e.Verdict != policy.Deny || e.Reason != policy.ReasonUnprotected {
		t.Errorf("decision %+v", e)
	}
}

// clientHelloOf gives the bytes of a ClientHello as crypto/tls sends them.
func clientHelloOf(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		// It ends when the pipe does.
		if err := tls.Client(a, config).Handshake(); err == nil {
			t.Error("handshake with nobody passed")
		}
		a.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(b, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(b, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// inRecords splits a one-record handshake into records of n bytes.
func inRecords(hello []byte, n int) []byte {
	var out []byte
	for body := hello[5:]; len(body) > 0; {
		k := min(n, len(body))
		out = append(out, 22, 3, 1, byte(k>>8), byte(k))
		out = append(out, body[:k]...)
		body = body[k:]
	}
	return out
}

func TestAClientHelloIsReadHoweverItIsCut(t *testing.T) {
	hello := clientHelloOf(t, &tls.Config{ServerName: "allowed.test", NextProtos: []string{strings.Repeat("x", 200), strings.Repeat("y", 200)}})
	if len(hello) < 1500 {
		t.Errorf("hello of %d bytes is not post-quantum sized", len(hello))
	}
	cases := []struct {
		name  string
		bytes []byte
		step  int
	}{
		{"whole", hello, len(hello)},
		{"one byte a segment", hello, 1},
		{"one byte a record", inRecords(hello, 1), 4096},
		{"three bytes a record, two a segment", inRecords(hello, 3), 2},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, onlyAllowed)
			r.host("allowed.test", true, "203.0.113.10")
			got := make(chan []byte, 1)
			r.origin("203.0.113.10:443", func(c *net.TCPConn) {
				b := make([]byte, len(tc.bytes))
				if _, err := io.ReadFull(c, b); err == nil {
					got <- b
				}
			})
			c := dialTCP(t, r.transparent("203.0.113.10:443"))
			for b := tc.bytes; len(b) > 0; {
				n := min(tc.step, len(b))
				if _, err := c.Write(b[:n]); err != nil {
					t.Fatal(err)
				}
				b = b[n:]
			}
			select {
			case b := <-got:
				if !bytes.Equal(b, tc.bytes) {
					t.Error("the upstream got other bytes")
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("nothing arrived; events %+v", r.log.decisions())
			}
		})
	}
}

func TestUpstreamFailuresAreNoDenials(t *testing.T) {
	cases := []struct {
		name  string
		hosts []string
		word  string
	}{
		{"a name that does not resolve", nil, audit.ErrorUnresolvable},
		{"an address that refuses", []string{"203.0.113.99"}, audit.ErrorUnreachable},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, onlyAllowed)
			if tc.hosts != nil {
				r.host("allowed.test", false, tc.hosts...)
			}
			conn := tls.Client(dialTCP(t, r.transparent("203.0.113.10:443")), &tls.Config{ServerName: "allowed.test"})
			if err := conn.Handshake(); err == nil {
				t.Error("handshake passed")
			}
			e := r.log.find(t, "error", func(e audit.Event) bool { return e.Kind == audit.KindError })
			if e.Error != tc.word {
				t.Errorf("error %+v, want %s", e, tc.word)
			}
			d := r.log.decision(t)
			if d.Verdict != policy.Allow || d.DecisionID != e.DecisionID {
				t.Errorf("decision %+v of error %+v", d, e)
			}
		})
	}
}

func TestAddressesAreCheckedBeforeTheyAreDialled(t *testing.T) {
	cases := []struct {
		name    string
		addrs   []string
		dialled string
	}{
		{"rebinding to the metadata service (B64)", []string{"169.254.169.254"}, ""},
		{"a private address", []string{"10.0.0.1"}, ""},
		{"loopback", []string{"127.0.0.1", "::1"}, ""},
		{"mapped loopback", []string{"::ffff:127.0.0.1"}, ""},
		{"the good one of two", []string{"192.168.0.1", "203.0.113.10"}, "203.0.113.10:443"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, onlyAllowed)
			r.host("allowed.test", false, tc.addrs...)
			conn := tls.Client(dialTCP(t, r.transparent("203.0.113.10:443")), &tls.Config{ServerName: "allowed.test"})
			if err := conn.Handshake(); err == nil {
				t.Error("handshake passed")
			}
			e := r.log.decision(t)
			if tc.dialled == "" && (e.Verdict != policy.Deny || e.Reason != policy.ReasonSpecialAddress) {
				t.Errorf("decision %+v", e)
			}
			if got := strings.Join(r.dials(), " "); got != tc.dialled {
				t.Errorf("dialled %q, want %q", got, tc.dialled)
			}
		})
	}
}

func TestHappyEyeballsTakesTheFamilyThatAnswers(t *testing.T) {
	cert := newCertificates(t, "allowed.test")
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", false, "2001:db8::1", "203.0.113.10")
	r.place("[2001:db8::1]:443", "silence")
	r.origin("203.0.113.10:443", tlsEcho(cert, "four\n"))
	start := time.Now()
	conn := tls.Client(dialTCP(t, r.transparent("203.0.113.77:443")), &tls.Config{ServerName: "allowed.test", RootCAs: cert.pool})
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != "four\n" {
		t.Fatalf("read %q, %v", line, err)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestADeadAttributedAddressIsNotTheEnd(t *testing.T) {
	cert := newCertificates(t, "allowed.test")
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.9", "203.0.113.10")
	r.origin("203.0.113.10:443", tlsEcho(cert, "ten\n"))
	conn := tls.Client(dialTCP(t, r.transparent("203.0.113.9:443")), &tls.Config{ServerName: "allowed.test", RootCAs: cert.pool})
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != "ten\n" {
		t.Fatalf("read %q, %v", line, err)
	}
}

func TestHalfCloseGoesThrough(t *testing.T) {
	r := newRig(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.10"]}`)
	r.origin("203.0.113.10:7", func(c *net.TCPConn) {
		b, err := io.ReadAll(c)
		if err == nil {
			c.Write(append([]byte("all: "), b...))
		}
	})
	c := dialTCP(t, r.transparent("203.0.113.10:7"))
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil || string(b) != "all: hello" {
		t.Errorf("read %q, %v", b, err)
	}
	e := r.log.find(t, "flow", func(e audit.Event) bool { return e.Kind == audit.KindFlow })
	if e.BytesOut != 5 || e.BytesIn != 10 {
		t.Errorf("flow %+v", e)
	}
	if e.DecisionID != r.log.decision(t).DecisionID {
		t.Error("the flow is not joined to its decision")
	}
}
