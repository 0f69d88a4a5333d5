//go:build linux

package proxy

//lint:file-ignore SA1019 net/http offers no way to serve one connection that is accepted and partly read already.

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// session2 is an HTTP/2 client connection in clear (prior knowledge): each
// stream's :authority is judged on its own (bypass B54), and forwarded over an
// HTTP/2 connection to the upstream that its verdict calls for.
type session2 struct {
	p     *Proxy
	ctx   context.Context
	c     *client
	proxy *httputil.ReverseProxy
	wg    sync.WaitGroup

	mu    sync.Mutex
	over  bool
	ready *ready
	ups   []*h2Upstream
}

// h2Upstream is one upstream connection of a session.
type h2Upstream struct {
	v    verdict
	cc   *http2.ClientConn
	tcp  *net.TCPConn
	end  func(error)
	stop func() bool
}

// countedConn counts what passes into its flow.
type countedConn struct {
	*net.TCPConn
	in   io.Reader
	flow *Flow
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.flow.AddBytes(0, uint64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	c.flow.AddBytes(uint64(n), 0)
	return n, err
}

// replayConn is a client connection whose recorded bytes come first.
type replayConn struct {
	*net.TCPConn
	in io.Reader
}

func (c *replayConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// serveHTTP2 serves the streams of a connection until either side is done.
func (p *Proxy) serveHTTP2(ctx context.Context, c *client, w *ready) {
	src := &replay{again: slices.Clone(c.recorded), conn: c.tcp}
	c.forget()
	c.deadline(noDeadline)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session2{p: p, ctx: ctx, c: c, ready: w}
	s.proxy = &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     roundTripper{},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler:  s.failed,
	}
	server := &http2.Server{}
	server.ServeConn(&replayConn{TCPConn: c.tcp, in: src}, &http2.ServeConnOpts{
		Context: ctx,
		Handler: http.HandlerFunc(s.stream),
		BaseConfig: &http.Server{
			ErrorLog:       log.New(io.Discard, "", 0),
			MaxHeaderBytes: p.cfg.Limits.SniffBytes,
		},
	})
	s.close(cancel)
	s.wg.Wait()
}

// streamKey holds what a stream was judged to be, for those that httputil calls.
type streamKey struct{}

type streamState struct {
	v  verdict
	id string
	up *h2Upstream
}

// stream judges one stream and forwards it.
func (s *session2) stream(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.wg.Done()
	pol := s.p.cfg.Policy.Load()
	subj, err := s.subject(r)
	if err != nil {
		subj.finding = policy.FindingMalformed
		v := s.p.refused(subj)
		writeDenial(w, deniedAnswer(v, s.p.record(v)))
		return
	}
	v := s.p.judge(pol, subj)
	if v.Verdict != policy.Allow {
		writeDenial(w, deniedAnswer(v, s.p.record(v)))
		return
	}
	up, v, id, err := s.upstream(pol, v)
	switch {
	case v.Verdict != policy.Allow:
		writeDenial(w, deniedAnswer(v, id))
	case err != nil:
		writeDenial(w, failedAnswer(v, id, err))
	default:
		ctx := context.WithValue(r.Context(), streamKey{}, &streamState{v: v, id: id, up: up})
		s.proxy.ServeHTTP(w, r.WithContext(ctx))
	}
}

// enter counts a stream in, unless the connection is over already.
func (s *session2) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.wg.Add(1)
	return true
}

// subject is what a stream names.
func (s *session2) subject(r *http.Request) (subject, error) {
	subj := s.c.base()
	subj.kind = policy.KindAsk
	subj.channel = audit.ChannelHTTP
	named, err := parseAuthority(r.Host)
	if err != nil {
		return subj, err
	}
	if r.Method == http.MethodConnect {
		return subj, errHead
	}
	for _, host := range r.Header["Host"] {
		if !strings.EqualFold(host, r.Host) {
			subj.finding = policy.FindingMismatch
		}
	}
	if s.c.authority != "" && named.host.Name != s.c.authority {
		subj.finding = policy.FindingMismatch
	}
	subj.name, subj.claimed = named.host.Name, named.host.Addr
	return subj, nil
}

// upstream gives the connection for v, made anew where there is none that can
// take another stream. Streams wait for each other's dials, in order.
func (s *session2) upstream(pol *policy.Compiled, v verdict) (*h2Upstream, verdict, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.ups {
		if sameRoute(u.v, v) && u.cc.CanTakeNewRequest() {
			return u, v, s.p.record(v), nil
		}
	}
	o, err := s.p.open(s.ctx, s.c, pol, v, s.ready)
	if err != nil || o.Verdict != policy.Allow {
		return nil, o.verdict, o.id, err
	}
	u, err := s.join(o)
	if err != nil {
		s.p.failed(o.verdict, o.id, err)
	}
	return u, o.verdict, o.id, err
}

// join makes an HTTP/2 connection of what was opened.
func (s *session2) join(o opening) (*h2Upstream, error) {
	f, end, ok := s.p.register(s.c, o)
	if !ok {
		return nil, ErrRevoked
	}
	tcp := o.up.tcp
	conn := &countedConn{TCPConn: tcp, in: &replay{again: o.up.early, conn: tcp}, flow: f}
	cc, err := (&http2.Transport{AllowHTTP: true, DisableCompression: true}).NewClientConn(conn)
	if err != nil {
		reset(tcp)
		end(err)
		return nil, err
	}
	u := &h2Upstream{v: o.verdict, cc: cc, tcp: tcp, end: end}
	u.stop = context.AfterFunc(s.ctx, func() { reset(tcp) })
	s.ups = append(s.ups, u)
	return u, nil
}

// close ends the session and its upstream connections.
func (s *session2) close(cancel func()) {
	s.mu.Lock()
	s.over = true
	cancel()
	ups := s.ups
	s.ups = nil
	s.mu.Unlock()
	for _, u := range ups {
		u.stop()
		reset(u.tcp)
		u.end(nil)
	}
}

// failed answers for an upstream that broke off.
func (s *session2) failed(w http.ResponseWriter, r *http.Request, err error) {
	st, ok := r.Context().Value(streamKey{}).(*streamState)
	if !ok || errors.Is(err, context.Canceled) {
		// The client went away.
		panic(http.ErrAbortHandler)
	}
	s.p.failed(st.v, st.id, err)
	writeDenial(w, failedAnswer(st.v, st.id, err))
}

func sameRoute(a, b verdict) bool {
	return a.name == b.name && a.direct == b.direct && a.subject.name == b.subject.name && a.subject.port == b.subject.port
}

// roundTripper sends a stream over the connection that was found for it.
type roundTripper struct{}

func (roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	st, ok := r.Context().Value(streamKey{}).(*streamState)
	if !ok {
		return nil, errors.New("stream without an upstream")
	}
	return st.up.cc.RoundTrip(r)
}

// rewrite leaves the request as it came: httputil would drop what earlier proxies
// said and tidy the query.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme = "http"
	r.Out.URL.Host = r.In.Host
	r.Out.Host = r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	delete(r.Out.Header, "Host")
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = v
		}
	}
}

func writeDenial(w http.ResponseWriter, d denial) {
	h := w.Header()
	h.Set("Content-Type", "text/plain")
	h.Set("Content-Length", strconv.Itoa(len(d.body)))
	h.Set("Proxy-Status", d.proxyStatus)
	w.WriteHeader(d.status)
	if _, err := io.WriteString(w, d.body); err != nil {
		// The stream is gone, and its client with it.
		return
	}
}
