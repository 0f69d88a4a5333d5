//go:build linux

package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/exeat/exeat/policy"
)

// FuzzClientHello holds what is read of a ClientHello against its bytes: the name
// is in our grammar, nothing read is lost, and the end is found.
func FuzzClientHello(f *testing.F) {
	hello := clientHelloOf(f, &tls.Config{ServerName: "allowed.test"})
	f.Add(hello)
	f.Add(inRecords(hello, 1))
	f.Add(inRecords(hello, 100))
	f.Add(clientHelloOf(f, &tls.Config{InsecureSkipVerify: true}))
	f.Add([]byte("\x16\x03\x01\x00\x05hello"))
	f.Add([]byte("\x80\x2e\x01\x00\x02"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte(http2Preface))
	p := &Proxy{hello: helloConfig()}
	p.cfg.Defaults()
	p.cfg.Limits.SniffTimeout = time.Second
	there, here := tcpPair(f) // for its deadlines
	defer there.Close()
	defer here.Close()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 100<<10 {
			return
		}
		for _, strict := range []bool{true, false} {
			c := &client{p: p, tcp: here, in: iotest.HalfReader(bytes.NewReader(b))}
			s := c.sniff(strict, time.Second, !strict)
			if !bytes.HasPrefix(b, c.recorded) {
				t.Errorf("recorded %q of %q", c.recorded, b)
			}
			if (b[0] == contentHandshake) != (s.wire == wireTLS) {
				t.Errorf("wire %d", s.wire)
			}
			if n := s.hello.name; n != "" {
				if h, err := policy.ParseWireHost(n); err != nil || h.Name != n {
					t.Errorf("name %q: %+v, %v", n, h, err)
				}
			}
			c.forget()
		}
	})
}

// FuzzHTTPHead holds the strict head against net/http: what we accept, it reads
// as the same request, so that what is judged is what is sent on.
func FuzzHTTPHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
		"GET http://allowed.test:80/x?y HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\nContent-Length: 3\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n",
		"CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, X\r\nUpgrade: h2c, x\r\n\r\n",
		"GET //a HTTP/1.0\r\nHost : b\r\n c\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		raw, err := readHead(bufio.NewReaderSize(bytes.NewReader(b), 64), nil, 64<<10)
		if err != nil {
			return
		}
		h, err := parseHead(raw)
		if err != nil || h.method == http.MethodConnect {
			return
		}
		q, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		if q.Method != h.method || q.ProtoMajor != 1 || q.ProtoMinor != int(h.minor) {
			t.Errorf("%q is read as %s %s", raw, q.Method, q.Proto)
		}
		judged := h.host
		if h.absolute {
			judged = h.uri
		}
		if again, err := parseAuthority(q.Host); err != nil || again != judged {
			t.Errorf("%q: judged %+v, net/http sees %q", raw, judged, q.Host)
		}
		prepareRequest(h, q, true)
		sentAs(t, raw, q, h, judged)
	})
}

// sentAs checks that what would be sent on parses strictly, and names what was
// judged.
func sentAs(t *testing.T, raw []byte, q *http.Request, h head, judged authority) {
	t.Helper()
	q.Body, q.ContentLength, q.TransferEncoding = http.NoBody, 0, nil
	q.Trailer = nil
	var out bytes.Buffer
	if err := q.Write(&out); err != nil {
		return
	}
	target := h.target
	if strings.HasPrefix(target, "//") { // see prepareRequest
		u, err := url.ParseRequestURI(target)
		if err != nil {
			t.Fatalf("%q was parsed, and is not: %v", target, err)
		}
		target = u.RequestURI()
	}
	again, err := parseHead(out.Bytes())
	if err != nil || again.host != judged || again.target != target || again.method != h.method {
		t.Errorf("%q is sent as %q: %+v, %v", raw, out.String(), again, err)
	}
	if strings.Contains(strings.ToLower(out.String()), "\r\nupgrade: h2") {
		t.Errorf("%q upgrades: %q", raw, out.String())
	}
}
