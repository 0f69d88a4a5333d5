//go:build linux

package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/exeat/exeat/policy"
)

// maxResponseHead bounds the head of a response.
const maxResponseHead = 1 << 20

// bodyGrace is how long a request body may still be on its way when the response
// has been passed on.
const bodyGrace = time.Second

// exchange forwards one judged request and its response, unbuffered in both
// directions; false ends the connection.
func (s *session) exchange(h head, req *http.Request, v verdict, id string) bool {
	upgrade := prepareRequest(h, req, s.explicit)
	out := s.send(req)
	resp, err := s.response(req)
	if err != nil && s.up.used && retriable(req) && s.ctx.Err() == nil && !s.up.flow.isAborted() {
		// The upstream closed an idle connection just as it was used again.
		return s.again(h, req, v, id)
	}
	if err != nil {
		return s.noResponse(req, v, id, out, err)
	}
	s.up.used = true
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if !upgrade || !out.over() {
			return s.noResponse(req, v, id, out, errors.New("upstream switched protocols unasked"))
		}
		return s.switchProtocols(resp)
	}
	return s.respond(req, resp, out)
}

// prepareRequest turns what the client sent into what the upstream gets: the
// target in origin form as it was written, hop-by-hop fields gone. It says
// whether an upgrade is asked for.
func prepareRequest(h head, req *http.Request, explicit bool) (upgrade bool) {
	if strings.HasPrefix(h.target, "//") {
		// As an opaque URL it would be written with a scheme. As a path it is written
		// with its octets escaped that RFC 3986 does not have in one.
		req.URL.Scheme, req.URL.Host, req.URL.User = "", "", nil
	} else {
		req.URL = &url.URL{Opaque: h.target}
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		// Else net/http writes one of its own.
		req.Header["User-Agent"] = []string{""}
	}
	if len(req.TransferEncoding) > 0 && req.Trailer == nil {
		// Where trailers come that were not announced.
		req.Trailer = http.Header{}
	}
	upgrade = stripHops(req.Header, !req.Close && req.ProtoMinor == 1)
	if explicit {
		req.Header.Del("Proxy-Authorization")
	}
	return upgrade
}

// stripHops removes the fields that concern one connection only (RFC 9110
// section 7.6.1), but for an upgrade that may pass: any but to HTTP/2, whose
// streams would have to be judged one by one (bypass B54).
func stripHops(h http.Header, mayUpgrade bool) (upgrade bool) {
	protocols := h["Upgrade"]
	asked := hasToken(h["Connection"], "upgrade")
	upgrade = mayUpgrade && asked && len(protocols) > 0
	for _, p := range tokens(protocols) {
		p = strings.ToLower(p)
		if strings.HasPrefix(p, "h2") || strings.HasPrefix(p, "http/") {
			upgrade = false
		}
	}
	for _, name := range tokens(h["Connection"]) {
		switch name := textproto.CanonicalMIMEHeaderKey(name); name {
		case "Content-Length", "Transfer-Encoding", "Host", "Te", "Trailer":
		default:
			delete(h, name)
		}
	}
	trailers := hasToken(h["Te"], "trailers")
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Upgrade", "Http2-Settings", "Te"} {
		delete(h, name)
	}
	if trailers {
		h["Te"] = []string{"trailers"}
	}
	if upgrade {
		h["Connection"], h["Upgrade"] = []string{"Upgrade"}, protocols
	}
	return upgrade
}

func tokens(values []string) []string {
	var out []string
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if t = strings.TrimSpace(t); t != "" {
				out = append(out, t)
			}
		}
	}
	return out
}

func hasToken(values []string, token string) bool {
	for _, t := range tokens(values) {
		if strings.EqualFold(t, token) {
			return true
		}
	}
	return false
}

// flusher collects small writes; a flushBody flushes it whenever there is nothing
// more to add. It hides bufio's ReadFrom, which would read past it.
type flusher struct{ w *bufio.Writer }

func newFlusher(w io.Writer) *flusher { return &flusher{bufio.NewWriterSize(w, 4096)} }

func (f *flusher) Write(b []byte) (int, error)       { return f.w.Write(b) }
func (f *flusher) WriteByte(b byte) error            { return f.w.WriteByte(b) }
func (f *flusher) WriteString(s string) (int, error) { return f.w.WriteString(s) }

// flushBody flushes what was written so far before it waits for more, so that
// no byte waits for the next.
type flushBody struct {
	io.ReadCloser
	to *flusher
	// err is why the body ended before its end.
	err error
}

func (b *flushBody) Read(p []byte) (int, error) {
	if err := b.to.w.Flush(); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// sending is a request on its way out.
type sending struct {
	done chan struct{}
	// err is final when done is closed; broke says that it was the client who broke
	// off.
	err   error
	broke bool
}

// over says that the whole request was sent.
func (s *sending) over() bool {
	select {
	case <-s.done:
		return s.err == nil
	default:
		return false
	}
}

// send writes the request; a body, on a goroutine of its own, for the response
// may begin before it ends.
func (s *session) send(req *http.Request) *sending {
	out := &sending{done: make(chan struct{})}
	w := newFlusher(s.up)
	if req.Body == http.NoBody {
		out.err = errors.Join(req.Write(w), w.w.Flush())
		close(out.done)
		return out
	}
	body := &flushBody{ReadCloser: req.Body, to: w}
	req.Body = body
	up := s.up.tcp
	go func() {
		defer close(out.done)
		out.err = errors.Join(req.Write(w), w.w.Flush())
		if body.err != nil {
			// The client broke off: the upstream must not take what it has for the
			// whole. (When the upstream broke off it may still have answered.)
			out.broke = !isTimeout(body.err)
			reset(up)
		}
	}()
	return out
}

// response reads the final response, passing on interim ones.
func (s *session) response(req *http.Request) (*http.Response, error) {
	for {
		s.up.left = maxResponseHead
		resp, err := http.ReadResponse(s.up.in, req)
		s.up.left = math.MaxInt64
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, nil
		}
		if req.ProtoMinor == 0 {
			continue
		}
		if err := s.writeHead(resp); err != nil {
			return nil, err
		}
	}
}

// writeHead passes on the head of a 1xx response.
func (s *session) writeHead(resp *http.Response) error {
	w := newFlusher(s.c.tcp)
	_, err := fmt.Fprintf(w, "HTTP/1.1 %s\r\n", resp.Status)
	err = errors.Join(err, resp.Header.Write(w))
	_, end := w.WriteString("\r\n")
	return errors.Join(err, end, w.w.Flush())
}

// respond passes the response on; false ends the connection.
func (s *session) respond(req *http.Request, resp *http.Response, out *sending) bool {
	chunked := len(resp.TransferEncoding) > 0
	lastOfUpstream := resp.Close || resp.ContentLength < 0 && !chunked && resp.Body != http.NoBody
	old := req.ProtoMinor == 0
	resp.Proto, resp.ProtoMajor, resp.ProtoMinor = "HTTP/1.1", 1, 1
	stripHops(resp.Header, false)
	if chunked && resp.Trailer == nil {
		resp.Trailer = http.Header{}
	}
	if old && chunked {
		resp.TransferEncoding, resp.Trailer, resp.ContentLength = nil, nil, -1
	}
	expecting := req.Header.Get("Expect") != "" && !out.over()
	resp.Close = req.Close || old || expecting
	w := newFlusher(s.c.tcp)
	body := &flushBody{ReadCloser: resp.Body, to: w}
	resp.Body = body
	err := errors.Join(resp.Write(w), w.w.Flush())
	if err != nil {
		// Truncated: neither side may take it for whole.
		s.abort(out, err)
		return false
	}
	if !s.settle(out) {
		return false
	}
	if resp.Close || lastOfUpstream && !chunked && resp.ContentLength < 0 {
		s.dropUpstream(nil)
		s.c.drain()
		return false
	}
	if lastOfUpstream {
		s.dropUpstream(nil)
	}
	return true
}

// settle waits for the rest of a request whose response is out; false when there
// is no end to it.
func (s *session) settle(out *sending) bool {
	if !out.over() {
		t := time.NewTimer(bodyGrace)
		defer t.Stop()
		select {
		case <-out.done:
		case <-t.C:
		}
	}
	if out.over() {
		return true
	}
	// Whichever side the body waits for; the client may yet read its answer.
	s.c.deadline(time.Unix(1, 0))
	reset(s.up.tcp)
	<-out.done
	s.dropUpstream(out.err)
	s.c.drain()
	return false
}

// abort resets both sides.
func (s *session) abort(out *sending, err error) {
	s.c.reset()
	reset(s.up.tcp)
	<-out.done
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = ErrUpstreamReset
	}
	s.dropUpstream(err)
}

// noResponse answers 502 (504) for an upstream that broke off, unless the flow
// was cut: then the client's connection is gone too.
func (s *session) noResponse(req *http.Request, v verdict, id string, out *sending, err error) bool {
	s.c.deadline(time.Unix(1, 0))
	cut := s.up.flow.isAborted() || s.ctx.Err() != nil
	reset(s.up.tcp)
	<-out.done
	s.c.deadline(noDeadline)
	if out.broke {
		s.dropUpstream(ErrClientReset)
		return false
	}
	s.dropUpstream(ErrUpstreamReset)
	if cut {
		return false
	}
	s.p.failed(v, id, err)
	req.Close = true
	return s.say(req, failedAnswer(v, id, err))
}

// retriable: sending it twice does no more than sending it once (RFC 9110
// section 9.2.2), and there is no body that is spent.
func retriable(req *http.Request) bool {
	if req.Body != http.NoBody {
		return false
	}
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// again sends a request over a new connection.
func (s *session) again(h head, req *http.Request, v verdict, id string) bool {
	s.dropUpstream(ErrUpstreamReset)
	pol := s.p.cfg.Policy.Load()
	v = s.p.judge(pol, v.subject)
	if v.Verdict != policy.Allow {
		return s.deny(req, v, s.p.record(v))
	}
	r, v, err := s.p.route(s.ctx, pol, v)
	if err == nil && v.Verdict != policy.Allow {
		return s.deny(req, v, s.p.record(v))
	}
	o := opening{verdict: v, id: id}
	if err == nil {
		o.up, err = s.p.dial(s.ctx, r)
	}
	if err != nil {
		s.p.failed(v, id, err)
		return s.say(req, failedAnswer(v, id, err))
	}
	if !s.useUpstream(o) {
		return false
	}
	return s.exchange(h, req, v, id)
}

// switchProtocols passes a 101 on and splices what follows, whatever it is: the
// host was judged.
func (s *session) switchProtocols(resp *http.Response) bool {
	u := s.up
	if err := s.writeHead(resp); err != nil {
		s.dropUpstream(ErrClientReset)
		return false
	}
	fromUpstream, err := u.in.Peek(u.in.Buffered())
	if err == nil {
		_, err = write(s.c.tcp, fromUpstream)
	}
	if err == nil {
		var fromClient []byte
		fromClient, err = s.in.Peek(s.in.Buffered())
		if err == nil {
			_, err = write(u.tcp, append(append([]byte(nil), fromClient...), s.src.again...))
			u.flow.AddBytes(uint64(len(fromClient)+len(s.src.again)), 0)
		}
	}
	if err != nil {
		s.dropUpstream(ErrClientReset)
		return false
	}
	s.up = nil
	u.stop()
	u.in.Reset(nil)
	readers.Put(u.in)
	s.p.hand(s.c, u.flow, u.tcp, u.end)
	return false
}

// isAborted says that the flow was revoked or cut.
func (f *Flow) isAborted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.aborted != nil
}
