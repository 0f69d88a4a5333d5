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
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

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

func TestNothingIsBuffered(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/x-ndjson", "application/octet-stream"} {
		t.Run(kind, func(t *testing.T) {
			next := make(chan struct{})
			r := newWebRig(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				for i := range 3 {
					fmt.Fprintf(w, "line %d\n", i)
					w.(http.Flusher).Flush()
					<-next
				}
			})
			resp, err := r.client(r.transparent("203.0.113.10:80")).Get("http://allowed.test/")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			in := bufio.NewReader(resp.Body)
			for i := range 3 {
				if line, err := in.ReadString('\n'); err != nil || line != fmt.Sprintf("line %d\n", i) {
					t.Fatalf("read %q, %v", line, err)
				}
				next <- struct{}{}
			}
		})
	}
}

func TestAnUploadIsNotBuffered(t *testing.T) {
	got := make(chan string)
	r := newWebRig(t, func(w http.ResponseWriter, q *http.Request) {
		b := make([]byte, 10)
		for {
			n, err := q.Body.Read(b)
			if n > 0 {
				got <- string(b[:n])
			}
			if err != nil {
				return
			}
		}
	})
	body, w := io.Pipe()
	done := make(chan error, 1)
	c := r.client(r.transparent("203.0.113.10:80"))
	go func() {
		resp, err := c.Post("http://allowed.test/", "text/plain", body)
		if err == nil {
			err = resp.Body.Close()
		}
		done <- err
	}()
	for _, part := range []string{"one", "two"} {
		if _, err := io.WriteString(w, part); err != nil {
			t.Fatal(err)
		}
		if b := <-got; b != part {
			t.Errorf("upstream read %q, want %q", b, part)
		}
	}
	w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTrailersAndExpectations(t *testing.T) {
	r := newWebRig(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		b, err := io.ReadAll(q.Body) // sends 100 Continue
		if err != nil {
			return
		}
		w.Write(b)
		w.Header().Set("X-Sum", "s"+q.Trailer.Get("X-In"))
		w.Header().Set(http.TrailerPrefix+"X-Late", "late")
	})
	c := r.client(r.transparent("203.0.113.10:80"))
	c.Transport.(*http.Transport).ExpectContinueTimeout = 5 * time.Second
	q, err := http.NewRequest("POST", "http://allowed.test/", io.MultiReader(strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Expect", "100-continue")
	q.Trailer = http.Header{"X-In": {"um"}}
	start := time.Now()
	resp, err := c.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || string(b) != "body" {
		t.Errorf("read %q, %v", b, err)
	}
	if resp.Trailer.Get("X-Sum") != "sum" || resp.Trailer.Get("X-Late") != "late" {
		t.Errorf("trailer %v", resp.Trailer)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("the 100 did not come through: %v", d)
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

func TestWebSocketsAreSpliced(t *testing.T) {
	r := newWebRig(t, func(w http.ResponseWriter, q *http.Request) {
		c, err := websocket.Accept(w, q, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(q.Context())
			if err != nil {
				return
			}
			if err := c.Write(q.Context(), kind, b); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	hc := r.client(r.transparent("203.0.113.10:80"))
	hc.Timeout = 0
	c, _, err := websocket.Dial(ctx, "ws://allowed.test/", &websocket.DialOptions{HTTPClient: hc})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, msg := range []string{"hello", strings.Repeat("x", 20000)} {
		if err := c.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := c.Read(ctx); err != nil || string(b) != msg {
			t.Fatalf("read %d bytes, %v", len(b), err)
		}
	}
	// It is a flow: a swap cuts it.
	if n := r.flows.Rejudge(r.swap(`"no-network"`)); n != 1 {
		t.Errorf("%d cut, want 1", n)
	}
	if _, _, err := c.Read(ctx); err == nil {
		t.Error("the WebSocket survived")
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
