//go:build linux

package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestExplicitProxy(t *testing.T) {
	cert := newCertificates(t, "allowed.test")
	r := newWebRig(t, whoAmI)
	r.origin("203.0.113.10:443", tlsEcho(cert, "ten\n"))
	r.web("203.0.113.10:8080", whoAmI)
	proxy := r.explicit()
	c := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}, Timeout: 10 * time.Second}
	cases := []struct {
		name, url string
		status    int
		body      string
	}{
		{"absolute form", "http://allowed.test/x?y", 200, "GET allowed.test /x?y"},
		{"absolute form with a port", "http://allowed.test:8080/", 200, "GET allowed.test:8080 /"},
		{"an unlisted name", "http://evil.test/", 403, ""},
		{"an unlisted address", "http://203.0.113.10/", 403, ""},
		{"loopback", "http://127.0.0.1/", 403, ""},
		{"a name that is loopback in disguise (B60)", "http://2130706433/", 400, ""},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			resp, body := get(t, c, tc.url)
			if resp.StatusCode != tc.status || tc.body != "" && body != tc.body {
				t.Errorf("%s %q", resp.Status, body)
			}
		})
	}
	if _, err := c.Get("https://evil.test/"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("CONNECT to an unlisted name: %v", err)
	}
}

// connectTo opens a CONNECT tunnel and gives the answer.
func connectTo(t *testing.T, proxy *url.URL, authority string) (*net.TCPConn, *bufio.Reader, *http.Response) {
	t.Helper()
	c := dialTCP(t, proxy.Host)
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, &http.Request{Method: "CONNECT"})
	if err != nil {
		t.Fatal(err)
	}
	return c, in, resp
}
