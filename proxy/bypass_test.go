//go:build linux

package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// TestHostileRequests sends bytes that two parsers may read in two ways, or that
// name something other than what they reach (bypass section 4).
func TestHostileRequests(t *testing.T) {
	const get, host = "GET / HTTP/1.1\r\n", "Host: allowed.test\r\n"
	cases := []struct {
		name, send string
		status     int
		reason     policy.Reason
	}{
		{"an ordinary request", get + host + "\r\n", 200, policy.ReasonRule},
		{"upper case and a trailing dot", get + "Host: ALLOWED.test.\r\n\r\n", 200, policy.ReasonRule},
		{"two Hosts (B52)", get + host + "Host: evil.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"the same Host twice (B52)", get + host + host + "\r\n", 400, policy.ReasonMalformed},
		{"no Host (B52)", get + "\r\n", 400, policy.ReasonMalformed},
		{"no Host in HTTP/1.0 (B52)", "GET / HTTP/1.0\r\n\r\n", 400, policy.ReasonMalformed},
		{"an empty Host (B52)", get + "Host:\r\n\r\n", 400, policy.ReasonMalformed},
		{"a space before the colon (B52)", get + "Host : allowed.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"a second Host with a space before the colon (B52)", get + host + "Host : evil.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"a folded line (B52)", get + host + "X: a\r\n b\r\n\r\n", 400, policy.ReasonMalformed},
		{"a folded Host (B52)", get + "Host:\r\n allowed.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"userinfo in Host (B52)", get + "Host: allowed.test@evil.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"userinfo in the URI (B52)", "GET http://allowed.test@evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"Content-Length and Transfer-Encoding (B52)", "POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, policy.ReasonMalformed},
		{"two Content-Lengths (B52)", "POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400, policy.ReasonMalformed},
		{"a Content-Length list (B52)", "POST / HTTP/1.1\r\n" + host + "Content-Length: 5, 5\r\n\r\nhello", 400, policy.ReasonMalformed},
		{"a signed Content-Length (B52)", "POST / HTTP/1.1\r\n" + host + "Content-Length: +5\r\n\r\nhello", 400, policy.ReasonMalformed},
		{"an odd Transfer-Encoding (B52)", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, policy.ReasonMalformed},
		{"chunked and identity (B52)", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400, policy.ReasonMalformed},
		{"Transfer-Encoding after a vertical tab (B52)", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400, policy.ReasonMalformed},
		{"Transfer-Encoding in HTTP/1.0 (B52)", "POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, policy.ReasonMalformed},
		{"bare LF (B52)", "GET / HTTP/1.1\nHost: allowed.test\n\n", 400, policy.ReasonMalformed},
		{"a bare LF that hides a Host (B52)", get + "X: a\nHost: evil.test\r\n" + host + "\r\n", 400, policy.ReasonMalformed},
		{"a bare CR (B52)", get + "X: a\rHost: evil.test\r\n" + host + "\r\n", 400, policy.ReasonMalformed},
		{"NUL in Host", get + "Host: allowed.test\x00.evil.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"UTF-8 in Host (B59)", get + "Host: allowed。test\r\n\r\n", 400, policy.ReasonMalformed},
		{"the Kelvin sign (B59)", get + "Host: \u212a.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"a zero-width space (B59)", get + "Host: allowed\u200b.test\r\n\r\n", 400, policy.ReasonMalformed},
		{"a suffix trick (B59)", get + "Host: evilallowed.test\r\n\r\n", 403, policy.ReasonUnlisted},
		{"the base of a wildcard", get + "Host: wild.test\r\n\r\n", 403, policy.ReasonUnlisted},
		{"a decimal host (B60)", get + "Host: 2130706433\r\n\r\n", 400, policy.ReasonMalformed},
		{"a hexadecimal host (B60)", get + "Host: 0x7f000001\r\n\r\n", 400, policy.ReasonMalformed},
		{"a short host (B60)", get + "Host: 127.1\r\n\r\n", 400, policy.ReasonMalformed},
		{"an octal host (B60)", get + "Host: 0177.0.0.1\r\n\r\n", 400, policy.ReasonMalformed},
		{"an address (B60)", get + "Host: 203.0.113.10\r\n\r\n", 403, policy.ReasonUnlisted},
		{"another address (B60)", get + "Host: 203.0.113.99\r\n\r\n", 403, policy.ReasonNameMismatch},
		{"a mapped address (B60)", get + "Host: [::ffff:203.0.113.10]\r\n\r\n", 403, policy.ReasonUnlisted},
		{"an IPv6 address without brackets", get + "Host: 2001:db8::1\r\n\r\n", 400, policy.ReasonMalformed},
		{"port 0", get + "Host: allowed.test:0\r\n\r\n", 400, policy.ReasonMalformed},
		{"a long port", get + "Host: allowed.test:65616\r\n\r\n", 400, policy.ReasonMalformed},
		{"an absolute URI that agrees", "GET http://allowed.test/ HTTP/1.1\r\n" + host + "\r\n", 200, policy.ReasonRule},
		{"an absolute URI that disagrees (B53)", "GET http://evil.test/ HTTP/1.1\r\n" + host + "\r\n", 403, policy.ReasonNameMismatch},
		{"an allowed absolute URI over a denied Host (B53)", "GET http://allowed.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403, policy.ReasonNameMismatch},
		{"an absolute URI on another port (B53)", "GET http://allowed.test:81/ HTTP/1.1\r\n" + host + "\r\n", 403, policy.ReasonNameMismatch},
		{"an absolute URI of another scheme", "GET ftp://allowed.test/ HTTP/1.1\r\n" + host + "\r\n", 400, policy.ReasonMalformed},
		{"CONNECT to somebody else's proxy", "CONNECT evil.test:443 HTTP/1.1\r\n" + host + "\r\n", 400, policy.ReasonMalformed},
		{"a fragment", "GET /#x HTTP/1.1\r\n" + host + "\r\n", 400, policy.ReasonMalformed},
		{"a space in the target", "GET /a b HTTP/1.1\r\n" + host + "\r\n", 400, policy.ReasonMalformed},
		{"HTTP/0.9", "GET /\r\n\r\n", 400, policy.ReasonMalformed},
		{"HTTP/2.0 in a request line (B54)", "GET / HTTP/2.0\r\n" + host + "\r\n", 400, policy.ReasonMalformed},
		{"a header line without a colon", get + host + "nonsense\r\n\r\n", 400, policy.ReasonMalformed},
		{"a head of 70 KB", get + host + "X: " + strings.Repeat("x", 70<<10) + "\r\n\r\n", 400, policy.ReasonMalformed},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newWebRig(t, whoAmI)
			c := dialTCP(t, r.transparent("203.0.113.10:80"))
			if _, err := io.WriteString(c, tc.send); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tc.status {
				t.Errorf("%s, want %d", resp.Status, tc.status)
			}
			if d := r.log.decision(t); d.Reason != tc.reason || d.Channel != audit.ChannelHTTP {
				t.Errorf("decision %+v, want %s", d, tc.reason)
			}
			if tc.status != 200 && len(r.dials()) > 0 {
				t.Errorf("dialled %v", r.dials())
			}
		})
	}
}

// TestASmuggledRequestIsJudged: a body that looks like a request is a body, and
// what follows a body is a request (B51, B52).
func TestASmuggledRequestIsJudged(t *testing.T) {
	seen := make(chan string, 10)
	r := newWebRig(t, func(_ http.ResponseWriter, q *http.Request) {
		b, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		seen <- q.Method + string(b)
	})
	c := dialTCP(t, r.transparent("203.0.113.10:80"))
	const inner = "GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	send := "POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 36\r\n\r\n" + inner + inner
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for _, want := range []int{200, 403} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%+v, %v, want %d", resp, err, want)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-seen; got != "POST"+inner || len(seen) > 0 {
		t.Errorf("the upstream saw %q and %d more", got, len(seen))
	}
}

// withExtension adds an extension to a one-record ClientHello.
func withExtension(t *testing.T, hello []byte, id uint16, body []byte) []byte {
	t.Helper()
	b := append([]byte(nil), hello...)
	at := 5 + 4 + 2 + 32
	at += 1 + int(b[at])                       // session id
	at += 2 + int(b[at])<<8 + int(b[at+1])     // cipher suites
	at += 1 + int(b[at])                       // compression methods
	extensions := int(b[at])<<8 + int(b[at+1]) // their length
	extra := append([]byte{byte(id >> 8), byte(id), byte(len(body) >> 8), byte(len(body))}, body...)
	b = append(b[:at+2:at+2], append(extra, b[at+2:]...)...)
	put := func(at, n int) { b[at], b[at+1] = byte(n>>8), byte(n) }
	put(at, extensions+len(extra))
	put(7, len(b)-9)
	put(3, len(b)-5)
	return b
}

// greaseECH is an outer encrypted_client_hello extension as browsers send it
// where they have no configuration (RFC 9849 section 6.2).
var greaseECH = append([]byte{0, 0, 1, 0, 1, 7, 0, 32}, append(make([]byte, 32), append([]byte{0, 144}, make([]byte, 144)...)...)...)

func TestHostileClientHellos(t *testing.T) {
	named := func(sni string) []byte {
		return clientHelloOf(t, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
	}
	// rename puts other bytes of the same length in place of the name.
	rename := func(to string) []byte {
		from := strings.Repeat("n", len(to)-5) + ".test"
		return []byte(strings.Replace(string(named(from)), from, to, 1))
	}
	hello := named("allowed.test")
	cases := []struct {
		name   string
		send   []byte
		passes bool
		reason policy.Reason
		shown  string
	}{
		{"GREASE ECH beside an allowed name is ordinary (B57)", withExtension(t, hello, extensionECH, greaseECH), true, policy.ReasonRule, "allowed.test"},
		{"ECH whose outer name is unlisted (B57)", withExtension(t, named("evil.test"), extensionECH, greaseECH), false, policy.ReasonECH, "evil.test"},
		{"ECH without an outer name (B57)", withExtension(t, named(""), extensionECH, greaseECH), false, policy.ReasonNoServerName, ""},
		{"a broken ECH extension", withExtension(t, hello, extensionECH, []byte{0, 1, 2}), false, policy.ReasonMalformed, ""},
		{"NUL in the name (B55)", rename("allowed.test\x00.test"), false, policy.ReasonMalformed, ""},
		{"CRLF in the name (B55)", rename("allowed.test\r\n"), false, policy.ReasonMalformed, ""},
		{"UTF-8 in the name (B55)", rename("allowed。test"), false, policy.ReasonMalformed, ""},
		{"a trailing dot", rename("allowed.test."), false, policy.ReasonMalformed, ""},
		{"a name that is an address (B55)", rename("203.0.113.10"), false, policy.ReasonNotAttributable, ""},
		{"a name that is another address (B55)", rename("203.0.113.99"), false, policy.ReasonNameMismatch, ""},
		{"a decimal name (B60)", rename("2130706433"), false, policy.ReasonMalformed, ""},
		{"a second server name extension (B55)", withExtension(t, hello, 0, append([]byte{0, 12, 0, 0, 9}, "evil.test"...)), false, policy.ReasonMalformed, ""},
		{"upper case", rename("ALLOWED.TEST"), true, policy.ReasonRule, "allowed.test"},
		{"0x16 and then nothing TLS (B58)", []byte("\x16\x03\x01\x00\x05hello"), false, policy.ReasonMalformed, ""},
		{"half a ClientHello (B58)", hello[:100], false, policy.ReasonLimit, ""},
		{"a name of 16 KB (B55)", hugeName(), false, policy.ReasonMalformed, ""},
		{"records without end", []byte(strings.Repeat("\x16\x03\x01\x00\x01\x01", 12000)), false, policy.ReasonMalformed, ""},
		{"a ServerHello", []byte("\x16\x03\x03\x00\x04\x02\x00\x00\x00"), false, policy.ReasonMalformed, ""},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, onlyAllowed, func(c *Config) { c.Limits.SniffTimeout = 300 * time.Millisecond })
			r.host("allowed.test", false, "203.0.113.10")
			r.origin("203.0.113.10:443", greeter)
			c := dialTCP(t, r.transparent("203.0.113.10:443"))
			// A denial may come before all is written.
			_, werr := c.Write(tc.send)
			b := make([]byte, 1)
			_, err := io.ReadFull(c, b)
			if tc.passes && (err != nil || b[0] != '2') {
				t.Errorf("read %q, %v, %v", b, err, werr)
			}
			if !tc.passes && err == nil && b[0] != 21 {
				t.Errorf("read %q, want an alert", b)
			}
			if d := r.log.decision(t); d.Reason != tc.reason || d.Name != tc.shown || d.Channel != audit.ChannelTLS {
				t.Errorf("decision %+v, want %s", d, tc.reason)
			}
		})
	}
}

// hugeName is a ClientHello whose server name is longer than a record.
func hugeName() []byte {
	name := strings.Repeat("a", 16<<10)
	ext := append([]byte{0, 0, byte((len(name) + 5) >> 8), byte(len(name) + 5), byte((len(name) + 3) >> 8), byte(len(name) + 3), 0, byte(len(name) >> 8), 0}, name...)
	body := append([]byte{3, 3}, make([]byte, 33)...)
	body = append(body, 0, 2, 0x13, 1, 1, 0, byte(len(ext)>>8), byte(len(ext)))
	body = append(body, ext...)
	message := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return inRecords(append(make([]byte, 5), message...), 16000)
}

func TestNamesBesideAnECHAreAttributable(t *testing.T) {
	hello := withExtension(t, clientHelloOf(t, &tls.Config{ServerName: "front.test"}), extensionECH, greaseECH)
	r := newRig(t, onlyAllowed)
	r.host("front.test", true, "203.0.113.10")
	c := dialTCP(t, r.transparent("203.0.113.10:443"))
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	if d := r.log.decision(t); d.Reason != policy.ReasonUnlisted {
		t.Errorf("decision %+v", d)
	}
}
