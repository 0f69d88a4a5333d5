//go:build linux

package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// web puts an HTTP/1 origin at a documentation address.
func (r *rig) web(at string, handler http.HandlerFunc) {
	r.t.Helper()
	s := httptest.NewServer(handler)
	r.t.Cleanup(s.Close)
	r.place(at, s.Listener.Addr().String())
}

// client is an HTTP client whose connections all go to the listener at.
func (r *rig) client(at string) *http.Client {
	tr := &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", at)
		},
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second}
}

// whoAmI answers with what the upstream saw.
func whoAmI(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s %s", r.Method, r.Host, r.RequestURI)
}

func get(t *testing.T, c *http.Client, target string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Get(target)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func newWebRig(t *testing.T, handler http.HandlerFunc) *rig {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.web("203.0.113.10:80", handler)
	return r
}

func TestEachRequestOfAConnectionIsJudged(t *testing.T) {
	r := newWebRig(t, whoAmI)
	r.host("b.wild.test", false, "203.0.113.11")
	r.web("203.0.113.11:80", whoAmI)
	c := dialTCP(t, r.transparent("203.0.113.66:80"))
	// Pipelined, all at once (B51).
	hosts := []string{"allowed.test", "evil.test", "b.wild.test", "allowed.test", "203.0.113.66"}
	var all strings.Builder
	for i, h := range hosts {
		fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\nHost: %s\r\n\r\n", i, h)
	}
	if _, err := io.WriteString(c, all.String()); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for i, want := range []string{"GET allowed.test /0", "", "GET b.wild.test /2", "GET allowed.test /3", ""} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("response %d: %v", i, err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if want != "" && (resp.StatusCode != 200 || string(b) != want) {
			t.Errorf("response %d: %s %q, want %q", i, resp.Status, b, want)
		}
		if want == "" && resp.StatusCode != 403 {
			t.Errorf("response %d: %s %q, want 403", i, resp.Status, b)
		}
	}
	d := r.log.decisions()
	for i, want := range []policy.Reason{policy.ReasonRule, policy.ReasonUnlisted, policy.ReasonRule, policy.ReasonRule, policy.ReasonUnlisted} {
		if i >= len(d) || d[i].Reason != want || d[i].Channel != audit.ChannelHTTP {
			t.Fatalf("decisions %+v", d)
		}
	}
}

func TestADenialSaysWhatWasDeniedWhyAndWhere(t *testing.T) {
	r := newWebRig(t, whoAmI)
	resp, body := get(t, r.client(r.transparent("203.0.113.10:80")), "http://evil.test/")
	id := r.log.decision(t).DecisionID
	if resp.StatusCode != 403 || resp.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
	want := `exeat; error=http_request_denied; details="unlisted; target evil.test:80; decision ` + id + `"`
	if got := resp.Header.Get("Proxy-Status"); got != want {
		t.Errorf("Proxy-Status %s, want %s", got, want)
	}
	if want := "exeat: evil.test:80 denied: unlisted (decision " + id + ")\n"; body != want {
		t.Errorf("body %q, want %q", body, want)
	}
}

func TestAnUpstreamsOwn403IsNotOurs(t *testing.T) {
	r := newWebRig(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) })
	resp, _ := get(t, r.client(r.transparent("203.0.113.10:80")), "http://allowed.test/")
	if resp.StatusCode != 403 || resp.Header.Get("Proxy-Status") != "" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
}

func TestHTTPFailuresAreTold(t *testing.T) {
	cases := []struct {
		name   string
		set    func(*rig)
		status int
		want   string
	}{
		{"unresolvable", func(*rig) {}, 502, "dns_error"},
		{"refused", func(r *rig) { r.host("allowed.test", false, "203.0.113.99") }, 502, "connection_refused"},
		{"silent", func(r *rig) {
			r.host("allowed.test", false, "203.0.113.98")
			r.place("203.0.113.98:80", "silence")
		}, 504, "connection_timeout"},
		{"hangs up", func(r *rig) {
			r.host("allowed.test", false, "203.0.113.97")
			r.origin("203.0.113.97:80", func(c *net.TCPConn) { c.Read(make([]byte, 1)) })
		}, 502, "connection_terminated"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, onlyAllowed, func(c *Config) { c.Limits.DialTimeout = 300 * time.Millisecond })
			tc.set(r)
			resp, body := get(t, r.client(r.transparent("203.0.113.10:80")), "http://allowed.test/")
			if resp.StatusCode != tc.status || !strings.Contains(resp.Header.Get("Proxy-Status"), "error="+tc.want) {
				t.Errorf("%s %v %q", resp.Status, resp.Header, body)
			}
			e := r.log.find(t, "error", func(e audit.Event) bool { return e.Kind == audit.KindError })
			if d := r.log.decision(t); d.Verdict != policy.Allow || d.DecisionID != e.DecisionID {
				t.Errorf("decision %+v, error %+v", d, e)
			}
		})
	}
}

func TestTheRequestArrivesAsItWasSent(t *testing.T) {
	seen := make(chan *http.Request, 1)
	r := newWebRig(t, func(w http.ResponseWriter, q *http.Request) { seen <- q })
	c := dialTCP(t, r.transparent("203.0.113.10:80"))
	const head = "GET //a%2Fb/../c?x=%zz;y|z HTTP/1.1\r\nHost: Allowed.Test:80\r\nAccept-Encoding: br\r\nX-A: 1\r\nX-A: 2\r\n" +
		"Connection: keep-alive, X-Hop\r\nX-Hop: gone\r\nProxy-Connection: keep-alive\r\n\r\n"
	if _, err := io.WriteString(c, head); err != nil {
		t.Fatal(err)
	}
	q := <-seen
	if q.RequestURI != "//a%2Fb/../c?x=%zz;y|z" {
		t.Errorf("target %q", q.RequestURI)
	}
	if q.Host != "Allowed.Test:80" {
		t.Errorf("host %q", q.Host)
	}
	want := http.Header{"Accept-Encoding": {"br"}, "X-A": {"1", "2"}}
	if fmt.Sprint(q.Header) != fmt.Sprint(want) {
		t.Errorf("header %v, want %v", q.Header, want)
	}
}

func TestEarlyAnswersReachAClientThatIsStillSending(t *testing.T) {
	r := newWebRig(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(413) })
	c := dialTCP(t, r.transparent("203.0.113.10:80"))
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 413 || !resp.Close {
		t.Errorf("%+v, %v", resp, err)
	}
}

func TestATruncatedResponseIsNotTakenForWhole(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.origin("203.0.113.10:80", func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		}
	})
	resp, err := r.client(r.transparent("203.0.113.10:80")).Get("http://allowed.test/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("read %q without an error", b)
	}
}

func TestOldClientsAndEndlessBodies(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.origin("203.0.113.10:80", func(c *net.TCPConn) {
		if q, err := http.ReadRequest(bufio.NewReader(c)); err == nil && q.URL.Path == "/chunked" {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
		} else {
			io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\nhello")
		}
	})
	for _, q := range []string{"GET /chunked HTTP/1.0\r\nHost: allowed.test\r\n\r\n", "GET / HTTP/1.0\r\nHost: allowed.test\r\n\r\n", "GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n"} {
		c := dialTCP(t, r.transparent("203.0.113.10:80"))
		if _, err := io.WriteString(c, q); err != nil {
			t.Fatal(err)
		}
		// Half-closed, as `nc -N` does: the answer comes all the same.
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if err != nil || !bytes.HasSuffix(b, []byte("\r\n\r\nhello")) || bytes.Contains(b, []byte("chunked")) {
			t.Errorf("%q: read %q, %v", q, b, err)
		}
	}
}

func TestAnUpgradeToHTTP2IsStripped(t *testing.T) {
	seen := make(chan http.Header, 1)
	r := newWebRig(t, func(_ http.ResponseWriter, q *http.Request) { seen <- q.Header })
	c := dialTCP(t, r.transparent("203.0.113.10:80"))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if h := <-seen; len(h) != 0 {
		t.Errorf("header %v (B54)", h)
	}
}

func TestClearHTTPFlowsAreCutByASwap(t *testing.T) {
	r := newWebRig(t, func(w http.ResponseWriter, q *http.Request) {
		w.(http.Flusher).Flush()
		<-q.Context().Done()
	})
	resp, err := r.client(r.transparent("203.0.113.10:80")).Get("http://allowed.test/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n := r.flows.Rejudge(r.swap(`{"network_mode":"allowlist","allowed_hosts":["other.test"]}`)); n != 1 {
		t.Errorf("%d cut, want 1", n)
	}
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("read %q without an error", b)
	}
	r.log.find(t, "revoked", func(e audit.Event) bool { return e.Kind == audit.KindFlow && e.Reason == policy.ReasonRevoked })
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	for _, e := range r.log.events {
		if e.Kind == audit.KindError {
			t.Errorf("a cut is no failure: %+v", e)
		}
	}
}

func TestAReusedUpstreamThatClosedIsDialledAgain(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.origin("203.0.113.10:80", func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	c := r.client(r.transparent("203.0.113.10:80"))
	for range 3 {
		if resp, body := get(t, c, "http://allowed.test/"); resp.StatusCode != 200 || body != "ok" {
			t.Errorf("%s %q", resp.Status, body)
		}
	}
}

func TestAnIdleUpstreamThatClosedOrSpokeIsNotUsedAgain(t *testing.T) {
	for name, after := range map[string]string{
		"closed":                                "",
		"an answer that nobody asked for (B52)": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, onlyAllowed)
			r.host("allowed.test", true, "203.0.113.10")
			sent := make(chan struct{}, 2)
			r.origin("203.0.113.10:80", func(c *net.TCPConn) {
				q, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				if _, err := io.Copy(io.Discard, q.Body); err == nil {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"+after)
				}
				if after == "" {
					c.Close()
				}
				sent <- struct{}{}
				if after != "" {
					io.Copy(io.Discard, c)
				}
			})
			c := r.client(r.transparent("203.0.113.10:80"))
			for range 2 {
				// Not idempotent: nothing would send it twice.
				resp, err := c.Post("http://allowed.test/", "text/plain", strings.NewReader("x"))
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				if err != nil || string(b) != "ok" || resp.StatusCode != 200 {
					t.Errorf("%s %q %v", resp.Status, b, err)
				}
				resp.Body.Close()
				<-sent
				time.Sleep(20 * time.Millisecond) // what was sent is on its way
			}
		})
	}
}
