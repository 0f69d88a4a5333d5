//go:build linux

package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// session is an HTTP/1 client connection in clear: every request on it is read
// strictly, judged on its own, and written anew to the upstream that its verdict
// calls for.
//
// It is not net/http's server, nor goproxy, which is served by it: that server
// folds lines, drops a Content-Length beside a Transfer-Encoding and answers 400
// by itself before any handler could judge and log the request; and goproxy ends
// an upgraded connection when one direction ends, and passes on no upgrade but
// WebSocket's. Parsing and writing of messages are still net/http's.
type session struct {
	p   *Proxy
	ctx context.Context
	c   *client
	// explicit: the client knows that this is a proxy; targets are absolute.
	explicit bool
	src      *replay
	in       *bufio.Reader
	head     []byte
	ready    *ready
	up       *httpUpstream
}

// replay gives bytes again before it reads on.
type replay struct {
	again []byte
	conn  *net.TCPConn
}

func (r *replay) Read(b []byte) (int, error) {
	if len(r.again) > 0 {
		n := copy(b, r.again)
		r.again = r.again[n:]
		return n, nil
	}
	return r.conn.Read(b)
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4096) }}

// serveHTTP1 serves requests until either side is done. w is what was dialled
// before the first was read.
func (p *Proxy) serveHTTP1(ctx context.Context, c *client, w *ready, explicit bool) {
	src := &replay{again: slices.Clone(c.recorded), conn: c.tcp}
	c.forget()
	in, ok := readers.Get().(*bufio.Reader)
	if !ok {
		return
	}
	in.Reset(src)
	s := &session{p: p, ctx: ctx, c: c, explicit: explicit, src: src, in: in, ready: w}
	defer func() {
		s.dropUpstream(nil)
		in.Reset(nil)
		readers.Put(in)
	}()
	for s.serveRequest() {
	}
}

// serveRequest reads, judges and answers one request; false ends the connection.
func (s *session) serveRequest() bool {
	if _, err := s.in.Peek(1); err != nil {
		return false
	}
	// A request takes its time, but its head may not (bypass B40).
	s.c.deadline(time.Now().Add(s.p.cfg.Limits.SniffTimeout))
	raw, err := readHead(s.in, s.head[:0], s.p.cfg.Limits.SniffBytes)
	s.head = raw
	if err != nil && !errors.Is(err, errHead) {
		return s.incomplete(err)
	}
	s.c.deadline(noDeadline)
	var h head
	if err == nil {
		h, err = parseHead(raw)
	}
	if err != nil {
		return s.malformed()
	}
	if h.method == http.MethodConnect {
		return s.connect(h)
	}
	if s.explicit && !h.absolute {
		return s.malformed()
	}
	req, err := s.parse(raw)
	if err != nil {
		return s.malformed()
	}
	return s.judgeRequest(h, req)
}

// parse has net/http read the request that begins with the checked head.
func (s *session) parse(raw []byte) (*http.Request, error) {
	rest, err := s.in.Peek(s.in.Buffered())
	if err != nil {
		return nil, err
	}
	again := make([]byte, 0, len(raw)+len(rest)+len(s.src.again))
	again = append(append(append(again, raw...), rest...), s.src.again...)
	s.src.again = again
	s.in.Reset(s.src)
	return http.ReadRequest(s.in)
}

// incomplete ends a connection whose request never became whole.
func (s *session) incomplete(err error) bool {
	subj := s.subject()
	subj.finding = policy.FindingMalformed
	if isTimeout(err) {
		subj.finding = policy.FindingTimeout
	}
	s.p.record(s.p.refused(subj))
	s.c.reset()
	return false
}

// malformed answers 400 to what is no request, whatever the policy: it cannot be
// written anew.
func (s *session) malformed() bool {
	subj := s.subject()
	subj.finding = policy.FindingMalformed
	v := s.p.refused(subj)
	s.c.answer(deniedAnswer(v, s.p.record(v)))
	return false
}

// refused is the denial of what cannot be passed on even where the destination
// is open: it carries the reason of the policy where that denies it too.
func (p *Proxy) refused(s subject) verdict {
	v := p.judge(p.cfg.Policy.Load(), s)
	if v.Verdict == policy.Allow {
		reason := policy.ReasonMalformed
		if s.finding == policy.FindingTimeout {
			reason = policy.ReasonLimit
		}
		v = v.deny(policy.Decision{Reason: reason, Generation: v.Generation})
	}
	return v
}

// subject is what is known of the connection whatever the request.
func (s *session) subject() subject {
	subj := s.c.base()
	subj.kind = policy.KindAsk
	subj.channel = audit.ChannelHTTP
	return subj
}

// requestSubject is what a request names.
func (s *session) requestSubject(h head) subject {
	subj := s.subject()
	named := h.host
	if h.absolute {
		named = h.uri
		if h.host.set() && h.host.withPort(80) != h.uri.withPort(80) {
			subj.finding = policy.FindingMismatch
		}
	}
	if s.explicit {
		subj.port = named.withPort(80).port
	}
	if s.c.authority != "" && named.host.Name != s.c.authority {
		subj.finding = policy.FindingMismatch
	}
	subj.name, subj.claimed = named.host.Name, named.host.Addr
	if s.explicit && subj.claimed.IsValid() {
		// The URI's address is where the client wants to go.
		subj.dst, subj.claimed = subj.claimed, netip.Addr{}
	}
	return subj
}

// judgeRequest decides one request and answers or forwards it.
func (s *session) judgeRequest(h head, req *http.Request) bool {
	pol := s.p.cfg.Policy.Load()
	v := s.p.judge(pol, s.requestSubject(h))
	if v.Verdict != policy.Allow {
		return s.deny(req, v, s.p.record(v))
	}
	if s.up != nil && s.up.serves(v) && s.up.idle() {
		id := s.p.record(v)
		return s.exchange(h, req, v, id)
	}
	s.dropUpstream(nil)
	o, err := s.p.open(s.ctx, s.c, pol, v, s.ready)
	switch {
	case o.Verdict != policy.Allow:
		return s.deny(req, o.verdict, o.id)
	case err != nil:
		return s.say(req, failedAnswer(o.verdict, o.id, err))
	}
	if !s.useUpstream(o) {
		return false
	}
	return s.exchange(h, req, o.verdict, o.id)
}

func (s *session) deny(req *http.Request, v verdict, id string) bool {
	return s.say(req, deniedAnswer(v, id))
}

// say answers in the upstream's place. The connection lives on where the request
// has no body that would have to be read first.
func (s *session) say(req *http.Request, d denial) bool {
	if req.Close || req.Body != http.NoBody || req.ProtoMinor == 0 {
		s.c.answer(d)
		return false
	}
	_, err := s.c.tcp.Write(d.bytes(req.Method == http.MethodHead, true))
	return err == nil
}

// httpUpstream is the session's connection of the moment.
type httpUpstream struct {
	tcp  *net.TCPConn
	flow *Flow
	end  func(error)
	stop func() bool
	in   *bufio.Reader
	v    verdict
	used bool
	// left is how much may still be read (the head of a response is bounded).
	left int64
}

// serves says that v would be dialled to what u is a connection to.
func (u *httpUpstream) serves(v verdict) bool {
	return sameRoute(u.v, v)
}

// idle says that u can take another request: its peer has neither closed it nor
// sent what nobody asked for (which would be taken for the next response).
func (u *httpUpstream) idle() bool {
	if u.in.Buffered() > 0 {
		return false
	}
	raw, err := u.tcp.SyscallConn()
	if err != nil {
		return false
	}
	var peek error
	err = raw.Control(func(fd uintptr) {
		_, _, peek = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err == nil && errors.Is(peek, unix.EAGAIN)
}

// Read counts what comes in.
func (u *httpUpstream) Read(b []byte) (int, error) {
	if u.left <= 0 {
		return 0, errTooLong
	}
	n, err := u.tcp.Read(b[:min(int64(len(b)), u.left)])
	u.left -= int64(n)
	u.flow.AddBytes(0, uint64(n))
	return n, err
}

// Write counts what goes out.
func (u *httpUpstream) Write(b []byte) (int, error) {
	n, err := u.tcp.Write(b)
	u.flow.AddBytes(uint64(n), 0)
	return n, err
}

// useUpstream makes o the session's upstream; false when it was revoked meanwhile.
func (s *session) useUpstream(o opening) bool {
	f, end, ok := s.p.register(s.c, o)
	if !ok {
		return false
	}
	tcp := o.up.tcp
	u := &httpUpstream{tcp: tcp, flow: f, end: end, v: o.verdict, left: 1 << 62}
	u.stop = context.AfterFunc(s.ctx, func() { reset(tcp) })
	in, ok := readers.Get().(*bufio.Reader)
	if !ok {
		in = bufio.NewReader(u)
	}
	if len(o.up.early) > 0 {
		in.Reset(io.MultiReader(&replay{again: o.up.early}, u))
	} else {
		in.Reset(u)
	}
	u.in = in
	s.up = u
	return true
}

// dropUpstream ends the upstream of the moment.
func (s *session) dropUpstream(err error) {
	u := s.up
	if u == nil {
		return
	}
	s.up = nil
	u.stop()
	if err != nil {
		reset(u.tcp)
	} else {
		// A revoked flow has closed it already.
		u.tcp.Close()
	}
	u.end(err)
	u.in.Reset(nil)
	readers.Put(u.in)
}
