//go:build linux

package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/exeat/exeat/audit"
)

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
	c.Transport.(*http.Transport).ExpectContinueTimeout = 30 * time.Second
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
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("the 100 did not come through: %v", d)
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
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

func TestAClientThatBreaksOffIsNoFailureOfTheUpstream(t *testing.T) {
	broke := make(chan error, 1)
	r := newWebRig(t, func(_ http.ResponseWriter, q *http.Request) {
		_, err := io.ReadAll(q.Body)
		broke <- err
	})
	c := dialTCP(t, r.transparent("203.0.113.10:80"))
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 100\r\n\r\nabc"); err != nil {
		t.Fatal(err)
	}
	r.log.decision(t)
	c.Close()
	if err := <-broke; err == nil {
		t.Error("the upstream took a part for the whole")
	}
	r.log.find(t, "flow", func(e audit.Event) bool { return e.Kind == audit.KindFlow })
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	for _, e := range r.log.events {
		if e.Kind == audit.KindError {
			t.Errorf("recorded %+v", e)
		}
	}
}
