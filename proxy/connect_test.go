//go:build linux

package proxy

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// prefixed is a connection whose first bytes were read ahead.
type prefixed struct {
	*net.TCPConn
	in *bufio.Reader
}

func (p *prefixed) Read(b []byte) (int, error) { return p.in.Read(b) }

func newConnectRig(t *testing.T, document string, cert certificates) *rig {
	r := newRig(t, document)
	r.host("allowed.test", true, "203.0.113.10")
	r.host("a.wild.test", false, "203.0.113.11")
	r.origin("203.0.113.10:443", tlsEcho(cert, "ten\n"))
	r.origin("203.0.113.11:443", tlsEcho(cert, "eleven\n"))
	r.origin("203.0.113.10:22", greeter)
	r.web("203.0.113.10:80", whoAmI)
	return r
}

func TestConnectIsJudgedByItsAuthorityAndByWhatIsInside(t *testing.T) {
	cert := newCertificates(t, "allowed.test", "a.wild.test", "evil.test")
	cases := []struct {
		name, authority string
		status          int
		sni             string
		greets, alert   string
		reason          policy.Reason
		channel         audit.Channel
	}{
		{"an allowed name", "allowed.test:443", 200, "allowed.test", "ten", "", policy.ReasonRule, audit.ChannelTLS},
		{"an unlisted name", "evil.test:443", 403, "", "", "", policy.ReasonUnlisted, audit.ChannelConnect},
		{"another allowed name inside (B53)", "allowed.test:443", 200, "a.wild.test", "", "unrecognized name", policy.ReasonNameMismatch, audit.ChannelTLS},
		{"an unlisted name inside (B53)", "allowed.test:443", 200, "evil.test", "", "unrecognized name", policy.ReasonNameMismatch, audit.ChannelTLS},
		{"an address whose inside shows an allowed name", "203.0.113.66:443", 200, "a.wild.test", "eleven", "", policy.ReasonRule, audit.ChannelTLS},
		{"an address whose inside shows an unlisted name", "203.0.113.10:443", 200, "evil.test", "", "unrecognized name", policy.ReasonUnlisted, audit.ChannelTLS},
		{"an address on a port where nothing will be shown", "203.0.113.66:22", 403, "", "", "", policy.ReasonNotAttributable, audit.ChannelConnect},
		{"loopback", "127.0.0.1:22", 403, "", "", "", policy.ReasonNotAttributable, audit.ChannelConnect},
		{"a port that is not open", "allowed.test:99", 502, "", "", "", policy.ReasonRule, audit.ChannelConnect},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newConnectRig(t, onlyAllowed, cert)
			c, in, resp := connectTo(t, r.explicit(), tc.authority)
			if resp.StatusCode != tc.status {
				t.Fatalf("%s, want %d", resp.Status, tc.status)
			}
			if (resp.StatusCode == 200) != (resp.Header.Get("Proxy-Status") == "") {
				t.Errorf("header %v", resp.Header)
			}
			if tc.sni != "" {
				inside := tls.Client(&prefixed{c, in}, &tls.Config{ServerName: tc.sni, RootCAs: cert.pool})
				line, err := bufio.NewReader(inside).ReadString('\n')
				if tc.greets != "" && (err != nil || line != tc.greets+"\n") {
					t.Errorf("read %q, %v, want %q", line, err, tc.greets)
				}
				if tc.alert != "" && (err == nil || !strings.Contains(err.Error(), tc.alert)) {
					t.Errorf("read %q, %v, want %q", line, err, tc.alert)
				}
			}
			if e := r.log.decision(t); e.Reason != tc.reason || e.Channel != tc.channel {
				t.Errorf("decision %+v", e)
			}
			if n := len(r.log.decisions()); n != 1 {
				t.Errorf("%d decisions, want one", n)
			}
		})
	}
}

func TestAConnectWithoutAWordIsLogged(t *testing.T) {
	cert := newCertificates(t, "allowed.test")
	r := newConnectRig(t, onlyAllowed, cert)
	c, _, resp := connectTo(t, r.explicit(), "allowed.test:443")
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	e := r.log.decision(t)
	if e.Verdict != policy.Allow || e.Channel != audit.ChannelConnect || e.Name != "allowed.test" || !e.Addr.IsValid() {
		t.Errorf("decision %+v", e)
	}
	if n := len(r.dials()); n != 1 {
		t.Errorf("%d dials", n)
	}
}

func TestConnectCarriesServerFirstAndClearHTTP(t *testing.T) {
	cert := newCertificates(t, "allowed.test")
	r := newConnectRig(t, onlyAllowed, cert)
	proxy := r.explicit()
	_, in, resp := connectTo(t, proxy, "allowed.test:22")
	if line, err := in.ReadString('\n'); resp.StatusCode != 200 || err != nil || line != "220 hello\r\n" {
		t.Errorf("%s %q %v", resp.Status, line, err)
	}
	c, in, _ := connectTo(t, proxy, "allowed.test:80")
	for _, tc := range []struct {
		host   string
		status int
	}{{"allowed.test", 200}, {"a.wild.test", 403}, {"allowed.test", 200}} {
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", tc.host); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != tc.status {
			t.Fatalf("%s: %+v, %v", tc.host, resp, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	c, in, _ = connectTo(t, proxy, "allowed.test:443")
	if _, err := io.WriteString(c, "\x00\x01\x02"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(in); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("opaque bytes inside CONNECT to 443: %v, want a reset", err)
	}
}

func TestConnectWithItsFirstBytesInOneSegment(t *testing.T) {
	cert := newCertificates(t, "allowed.test")
	r := newConnectRig(t, onlyAllowed, cert)
	c := dialTCP(t, r.explicit().Host)
	hello := clientHelloOf(t, &tls.Config{ServerName: "allowed.test"})
	if _, err := c.Write(append([]byte("CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n"), hello...)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, &http.Request{Method: "CONNECT"})
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	b := make([]byte, 1)
	if _, err := io.ReadFull(in, b); err != nil || b[0] != 22 {
		t.Errorf("read %v, %v, want a ServerHello", b, err)
	}
}

func TestARedirectedClientOfTheExplicitListener(t *testing.T) {
	r := newConnectRig(t, onlyAllowed, newCertificates(t, "allowed.test"))
	proxy := r.explicit()
	connectTo(t, proxy, "allowed.test:22") // it is up
	// nft redirects what goes to the explicit listener too.
	redirected := &url.URL{Scheme: "http", Host: r.transparent(proxy.Host)}
	_, in, resp := connectTo(t, redirected, "allowed.test:22")
	if line, err := in.ReadString('\n'); resp.StatusCode != 200 || err != nil || line != "220 hello\r\n" {
		t.Errorf("%s %q %v", resp.Status, line, err)
	}
}

func TestThroughAnUpstreamProxy(t *testing.T) {
	cert := newCertificates(t, "allowed.test")
	for _, resolves := range []bool{false, true} {
		t.Run(fmt.Sprintf("that resolves: %v", resolves), func(t *testing.T) {
			asked := make(chan *http.Request, 1)
			ln := listenLoopback(t)
			defer ln.Close()
			go func() {
				c, err := ln.AcceptTCP()
				if err != nil {
					return
				}
				defer c.Close()
				in := bufio.NewReader(c)
				q, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				asked <- q
				if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nX: y\r\n\r\n"); err != nil {
					return
				}
				tlsEcho(cert, "corporate\n")(c)
			}()
			r := newRig(t, onlyAllowed, func(c *Config) {
				c.UpstreamProxy = &url.URL{Scheme: "http", Host: ln.Addr().String(), User: url.UserPassword("me", "pw")}
				c.UpstreamResolves = resolves
			})
			r.place(ln.Addr().String(), ln.Addr().String())
			r.host("allowed.test", false, "203.0.113.10")
			conn := tls.Client(dialTCP(t, r.transparent("203.0.113.66:443")), &tls.Config{ServerName: "allowed.test", RootCAs: cert.pool})
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "corporate\n" {
				t.Fatalf("read %q, %v", line, err)
			}
			q := <-asked
			want := "203.0.113.10:443"
			if resolves {
				want = "allowed.test:443"
			}
			auth := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:pw"))
			if q.Method != "CONNECT" || q.Host != want || q.Header.Get("Proxy-Authorization") != auth {
				t.Errorf("asked %s %s %v", q.Method, q.Host, q.Header)
			}
		})
	}
}
