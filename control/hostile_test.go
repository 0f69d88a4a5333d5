package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

func readAnswer(t *testing.T, conn net.Conn) (int, string) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(response.Body)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) { // of a request that was not read to its end
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func TestMalformedRequests(t *testing.T) {
	s := start(t, nil)
	put := func(body string) string {
		return fmt.Sprintf("PUT /v1/policy HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	tests := map[string]struct {
		request string
		status  int
		has     string
	}{
		"no HTTP":                    {"hello\r\n\r\n", 400, ""},
		"TLS":                        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ""},
		"a header without end":       {"GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 32<<10) + "\r\n\r\n", 431, ""},
		"an unknown call":            {"GET /v2/status HTTP/1.1\r\nHost: x\r\n\r\n", 404, `"code":"not-found"`},
		"a path with dots":           {"GET /v1/../v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 404, `"code":"not-found"`},
		"another method":             {"DELETE /v1/policy HTTP/1.1\r\nHost: x\r\n\r\n", 405, `"code":"method-not-allowed"`},
		"an empty body":              {put(""), 400, `"path":"policy","message":"is missing`},
		"no JSON":                    {put("{"), 400, `is not JSON`},
		"no object":                  {put(`["public"]`), 400, `want a JSON object`},
		"null":                       {put(`null`), 400, `want a JSON object`},
		"something after its end":    {put(`{"policy":"public"} {}`), 400, `has something after its end`},
		"a member twice":             {put(`{"policy":"public","policy":"no-network"}`), 400, `is given twice`},
		"an unknown member":          {put(`{"policy":"public","fro":"1m"}`), 400, `"path":"fro"`},
		"null for a generation":      {put(`{"policy":"public","if_generation":null}`), 400, `"path":"if_generation"`},
		"a negative generation":      {put(`{"policy":"public","if_generation":-1}`), 400, `"path":"if_generation"`},
		"half a generation":          {put(`{"policy":"public","if_generation":1.5}`), 400, `"path":"if_generation"`},
		"a lease that is a number":   {put(`{"policy":"public","for":30}`), 400, `in quotation marks`},
		"a lease of nothing":         {put(`{"policy":"public","for":"0s"}`), 400, `"path":"for"`},
		"then without a lease":       {put(`{"policy":"public","then":"run"}`), 400, `stands only beside for`},
		"a faulty policy in then":    {put(`{"policy":"public","for":"1m","then":{"network_mode":"x"}}`), 400, `"path":"then.network_mode"`},
		"a phase that is a policy":   {put(`{"policy":"public","phase":"public"}`), 400, `can't be the name of a phase`},
		"a phase that is a terminal": {put(`{"policy":"public","phase":"\u001b[2J"}`), 400, `is printable`},
		"very deep":                  {put(`{"policy":` + strings.Repeat("[", 20_000)), 400, `is not JSON`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(t)
			if _, err := io.WriteString(conn, tt.request); err != nil {
				t.Fatal(err)
			}
			status, body := readAnswer(t, conn)
			if status != tt.status || !strings.Contains(body, tt.has) {
				t.Errorf("%d %s\nwant %d with %s", status, body, tt.status, tt.has)
			}
		})
	}
	if state := s.engine.Policy(); state.Generation != 3 {
		t.Errorf("generation %d: one of them was taken for a swap", state.Generation)
	}
}

func TestAnOversizedBodyIsRefused(t *testing.T) {
	s := start(t, nil)
	for name, length := range map[string]int64{"announced": 17 << 20, "not announced": -1} {
		t.Run(name, func(t *testing.T) {
			body := io.LimitReader(endless{}, 17<<20)
			request, err := http.NewRequest(http.MethodPut, "http://exeat/v1/policy", io.NopCloser(body))
			if err != nil {
				t.Fatal(err)
			}
			request.ContentLength = length
			response, data := s.roundTrip(t, request)
			if response.StatusCode != 413 || !strings.Contains(string(data), "too-large") {
				t.Errorf("%d %.200s", response.StatusCode, data)
			}
		})
	}
}

// endless is an endless string.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

func TestALargePolicyIsTaken(t *testing.T) {
	s := start(t, nil)
	var b strings.Builder
	b.WriteString(`{"network_mode":"allowlist","allowed_hosts":["n.example.org"`)
	for i := range 99_999 {
		fmt.Fprintf(&b, `,"n%d.example.org:443"`, i)
	}
	b.WriteString("]}")
	result, err := s.client.SwapDocument(context.Background(), []byte(b.String()), api.SwapRequest{})
	if err != nil || result.Generation != 4 || len(s.engine.Policy().Policy.Allowed) != 100_000 {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestSlowPeersAreCut(t *testing.T) {
	s := start(t, func(c *Config) { c.HeaderTimeout, c.BodyTimeout = 100*time.Millisecond, 200*time.Millisecond })
	tests := map[string]string{
		"nothing at all":   "",
		"half a header":    "GET /v1/status HTTP/1.1\r\nHo",
		"half a body":      "PUT /v1/policy HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
		"an idle upgrader": "GET /v1/status HTTP/1.1\r\nUpgrade: x\r\nConnection: upgrade\r\n",
	}
	for name, request := range tests {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(t)
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("not cut: %v", err)
			}
		})
	}
	if s.engine.Policy().Generation != 3 {
		t.Error("half a body was taken for a swap")
	}
}

func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	s := start(t, nil)
	const over = 50
	conns := make([]net.Conn, maxConns+over)
	for i := range conns {
		conns[i] = s.dial(t)
	}
	closed := 0
	for _, conn := range conns[maxConns:] {
		if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		} else {
			break
		}
	}
	if closed != over {
		t.Errorf("%d of %d connections too many were closed", closed, over)
	}
	// what exceeds the limit is closed at once: the caller is told, and never waits
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.client.Health(ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Error("a caller was kept waiting")
	}
}

func TestAReaderThatNeverReadsIsCutAndDelaysNobody(t *testing.T) {
	s := start(t, func(c *Config) { c.WriteTimeout = 200 * time.Millisecond })
	conn := s.dial(t)
	if _, err := io.WriteString(conn, "GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	message := strings.Repeat("m", 4000)
	begin := time.Now()
	for range 5000 { // 20 MB: more than any socket's buffer holds
		s.log.Record(audit.Event{Kind: audit.KindLifecycle, Message: message})
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("recording took %v", took)
	}
	if err := s.client.Health(context.Background()); err != nil {
		t.Errorf("the server: %v", err)
	}
	deadline := time.After(10 * time.Second)
	for { // cut: what is buffered is read, then it ends
		select {
		case <-deadline:
			t.Fatal("it was not cut")
		case <-time.After(300 * time.Millisecond):
		}
		if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err == nil {
			return
		}
	}
}

func TestASlowReaderIsToldWhatItLost(t *testing.T) {
	s := start(t, nil)
	s.log.Record(audit.Event{Kind: audit.KindLifecycle})
	for range 1000 { // the ring holds 256
		s.log.Record(audit.Event{Kind: audit.KindLifecycle})
	}
	var lost, got uint64
	for e, err := range s.client.Events(context.Background(), api.EventQuery{After: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == audit.KindLost {
			lost += e.Folded
			continue
		}
		got++
	}
	if got != 256 || lost != 1000-256 {
		t.Errorf("got %d, told of %d lost: want 256, 744", got, lost)
	}
}

// overwritten is a reader of a replay during whose first event the ring goes round.
type overwritten struct {
	*httptest.ResponseRecorder
	meanwhile func()
}

func (o *overwritten) Write(b []byte) (int, error) {
	if do := o.meanwhile; do != nil {
		o.meanwhile = nil
		do()
	}
	return o.ResponseRecorder.Write(b)
}

func (o *overwritten) SetReadDeadline(time.Time) error  { return nil }
func (o *overwritten) SetWriteDeadline(time.Time) error { return nil }

func TestAReplayThatIsOverwrittenSaysWhatItLost(t *testing.T) {
	for name, tt := range map[string]struct {
		before, meanwhile int
		after             string
		got, lost         uint64
	}{
		"all is kept":                         {200, 0, "", 200, 0},
		"the second batch left the ring":      {200, 1000, "", 128, 72},
		"a part of the second batch did":      {200, 200, "", 184, 16},
		"the ring had gone round before":      {1000, 1000, "", 128, 128},
		"after an event that is there":        {200, 1000, "?since=100", 100, 0},
		"after an event that had left before": {1000, 0, "?since=1", 256, 743},
		"and then the rest leaves":            {1000, 1000, "?since=1", 128, 743 + 128},
		"after another start's event":         {200, 1000, "?since=100000", 128, 72},
	} {
		t.Run(name, func(t *testing.T) {
			log := audit.New(audit.Config{RingSize: 256})
			defer log.Close()
			s, err := New(Config{Engine: newEngine(t), Log: log})
			if err != nil {
				t.Fatal(err)
			}
			record := func(n int) {
				for range n {
					log.Record(audit.Event{Kind: audit.KindLifecycle})
				}
			}
			record(tt.before)
			w := &overwritten{httptest.NewRecorder(), func() { record(tt.meanwhile) }}
			if err := s.getEvents(w, httptest.NewRequest(http.MethodGet, "/v1/events"+tt.after, nil)); err != nil {
				t.Fatal(err)
			}
			var got, lost uint64
			for line := range strings.Lines(w.Body.String()) {
				var e audit.Event
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
				if e.Kind == audit.KindLost {
					lost += e.Folded
				} else {
					got++
				}
			}
			if got != tt.got || lost != tt.lost {
				t.Errorf("got %d, told of %d lost: want %d, %d", got, lost, tt.got, tt.lost)
			}
		})
	}
}

func TestFollowing(t *testing.T) {
	s := start(t, nil)
	record := func(name string, verdict policy.Verdict) {
		s.log.Record(audit.Event{Kind: audit.KindDecision, Name: name, Port: 443, Verdict: verdict, Reason: policy.ReasonUnlisted})
	}
	record("old.example.org", policy.Deny)
	deny := policy.Deny
	var names []string
read:
	for e, err := range s.client.Events(context.Background(), api.EventQuery{Follow: true, Verdict: &deny}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Name)
		switch len(names) {
		case 1:
			record("allowed.example.org", policy.Allow)
			record("new.example.org", policy.Deny)
		case 2:
			break read
		}
	}
	if strings.Join(names, " ") != "old.example.org new.example.org" {
		t.Errorf("followed %q", names)
	}
	// the stream ends when the server does, without an error
	ended := make(chan error, 1)
	followed := make(chan struct{})
	go func() {
		var last error
		for _, err := range s.client.Events(context.Background(), api.EventQuery{Follow: true}) {
			if last = err; err == nil {
				select {
				case followed <- struct{}{}:
				default:
				}
			}
		}
		ended <- last
	}()
	<-followed
	if err := s.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the stream ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the stream outlives the server")
	}
}

func FuzzSwapRequest(f *testing.F) {
	for _, seed := range []string{
		`{"policy": "public"}`,
		`{"policy": {"network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}, "if_generation": 3, "for": "10m", "then": "run", "phase": "run"}`,
		`{"policy": null, "for": 1, "then": {}, "x": [1]}`, `{"then": "no-network", "for": "1s"}`, `[`, ``, `{"policy":"public"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := parseBody(data).swapRequest()
		if err != nil {
			var refused *api.Error
			if !errors.As(err, &refused) || refused.Status != 400 || len(refused.Problems) == 0 {
				t.Fatalf("%q: %v, want a 400 with its problems", data, err)
			}
			return
		}
		if req.Policy == nil || req.For < 0 || req.Then != nil && req.For == 0 {
			t.Fatalf("%q was taken as %+v", data, req)
		}
		if _, err := parseBody(data).enterRequest(); err == nil {
			t.Fatalf("%q was taken as the body of another call too", data)
		}
	})
}
