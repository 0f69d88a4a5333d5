//go:build linux

package proxy

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// How long a connection that no bytes can save may take to say what it is: long
// enough for a client that speaks, to answer it in its own protocol; short, for
// one that waits, above all on ports where the server may be to speak first.
const (
	hopelessPatience    = 250 * time.Millisecond
	hopelessWebPatience = time.Second
)

// opaquePatience is how long bytes that may yet become a request line are held
// when they may pass as they are.
const opaquePatience = time.Second

// transparentConn judges one redirected connection.
func (p *Proxy) transparentConn(ctx context.Context, c *client) {
	p.inspect(ctx, c, upstream{})
}

// base is what is known of a connection before its bytes.
func (c *client) base() subject {
	s := subject{kind: policy.KindConnection, port: c.dst.Port(), name: c.authority, client: c.peer}
	if a := c.dst.Addr(); a.IsValid() {
		s.dst = a
		s.attributed = c.p.cfg.Names.Names(a)
	}
	return s
}

// mustParse: on these ports bytes must be HTTP or TLS (bypass B58).
func mustParse(port uint16) bool { return port == 80 || port == 443 }

// opaque is the subject of bytes that are neither TLS nor HTTP.
func (c *client) opaque() subject {
	s := c.base()
	s.channel = audit.ChannelOpaque
	if mustParse(s.port) {
		s.finding = policy.FindingMalformed
	}
	return s
}

// inspect reads what the connection says first, from whichever side, judges it
// and passes it on. up is the connection that a CONNECT dialled already, if any.
func (p *Proxy) inspect(ctx context.Context, c *client, up upstream) {
	pol := p.cfg.Policy.Load()
	early := p.judge(pol, c.opaque())
	if early.opened && !pol.HoldsDeniedName() {
		// Nothing that the bytes could name would change it.
		p.pass(ctx, c, pol, early, &ready{up: up})
		return
	}
	w := &ready{up: up}
	patience := p.cfg.Limits.SniffTimeout
	switch {
	case early.Verdict == policy.Allow:
		w.ahead = p.dialAhead(ctx, c, pol, early, up)
		patience = 0
	case hopeless(early.Reason) && mustParse(c.dst.Port()):
		patience = min(patience, hopelessWebPatience)
	case hopeless(early.Reason):
		patience = min(patience, hopelessPatience)
	}
	defer w.discard()
	s := c.sniff(mustParse(c.dst.Port()), patience, early.Verdict == policy.Allow)
	if ctx.Err() != nil {
		return
	}
	// The first byte may have taken an hour: what is in force now decides.
	pol = p.cfg.Policy.Load()
	switch {
	case s.woken, s.closed && w.ahead != nil:
		p.pass(ctx, c, pol, p.judge(pol, c.opaque()), w)
	case s.wire == wireTLS:
		p.pass(ctx, c, pol, p.judge(pol, c.tlsSubject(s.hello)), w)
	case s.wire == wireHTTP1:
		p.serveHTTP1(ctx, c, w, false)
	case s.wire == wireHTTP2:
		p.serveHTTP2(ctx, c, w)
	case s.closed:
		p.leave(c, pol, w.up)
	default:
		subj := c.opaque()
		if s.finding != policy.FindingNone {
			subj.finding = s.finding
		}
		p.pass(ctx, c, pol, p.judge(pol, subj), w)
	}
}

// leave is for a client that connected and went without a word, as port scanners
// and preconnecting browsers do: where it was going is judged, and recorded only
// when that was nowhere, or when up says that a CONNECT had it reached already.
func (p *Proxy) leave(c *client, pol *policy.Compiled, up upstream) {
	subj := c.base()
	subj.channel = audit.ChannelOpaque
	if up.tcp != nil {
		subj.channel = audit.ChannelConnect
	}
	v := p.judge(pol, subj)
	if up.tcp != nil && v.Verdict == policy.Allow {
		v.direct = up.addr
	}
	if up.tcp != nil || v.Verdict != policy.Allow {
		p.record(v)
	}
}

// hopeless: no name that the bytes could show changes such a denial.
func hopeless(r policy.Reason) bool {
	return r == policy.ReasonMode || r == policy.ReasonDenied || r == policy.ReasonUnprotected
}

// tlsSubject is what a ClientHello asks for. Inside a CONNECT to a name it must
// ask for the same one.
func (c *client) tlsSubject(h clientHello) subject {
	s := c.base()
	s.channel = audit.ChannelTLS
	s.finding = h.finding
	if h.finding != policy.FindingNone && h.finding != policy.FindingECH {
		return s
	}
	if c.authority != "" && h.name != c.authority {
		s.finding = policy.FindingMismatch
	}
	s.name, s.claimed = h.name, h.claimed
	return s
}

// ready is what is dialled before the verdict: by a CONNECT, or ahead.
type ready struct {
	ahead *ahead
	up    upstream
}

// take gives the dialled connection if it is one that v may use.
func (w *ready) take(c *client, v verdict) (upstream, bool, error) {
	if w.ahead != nil {
		a := w.ahead
		w.ahead = nil
		up, err := a.take()
		w.up = up
		if err != nil && v.direct.IsValid() && v.name == "" {
			return upstream{}, false, err
		}
	}
	up := w.up
	if up.tcp == nil {
		return upstream{}, false, nil
	}
	same := up.addr.IsValid() && up.addr == v.direct || c.authority != "" && v.subject.name == c.authority
	if !same {
		return upstream{}, false, nil
	}
	w.up = upstream{}
	return up, true, nil
}

func (w *ready) discard() {
	if w.ahead != nil {
		w.ahead.discard()
	} else if w.up.tcp != nil {
		reset(w.up.tcp)
	}
	*w = ready{}
}

// pass denies the connection or passes it on, as v says.
func (p *Proxy) pass(ctx context.Context, c *client, pol *policy.Compiled, v verdict, w *ready) {
	opened, err := p.open(ctx, c, pol, v, w)
	switch {
	case opened.Verdict != policy.Allow:
		if v.subject.channel == audit.ChannelTLS {
			c.alert(alertFor(opened.Reason))
			return
		}
		c.reset()
	case err != nil:
		c.reset()
	default:
		p.relay(c, opened)
	}
}

// opening is an allowed connection with its upstream, or a denial.
type opening struct {
	verdict
	id string
	up upstream
}

// open connects what v allows, and records the decision once its addresses are
// checked; an error is a failure of the upstream, recorded too.
func (p *Proxy) open(ctx context.Context, c *client, pol *policy.Compiled, v verdict, w *ready) (opening, error) {
	if v.Verdict != policy.Allow {
		return opening{verdict: v, id: p.record(v)}, nil
	}
	up, ok, err := w.take(c, v)
	if ok || err != nil {
		o := opening{verdict: v, id: p.record(v), up: up}
		if err != nil {
			p.failed(v, o.id, err)
		}
		return o, err
	}
	w.discard()
	r, v, err := p.route(ctx, pol, v)
	o := opening{verdict: v, id: p.record(v)}
	if err == nil && v.Verdict == policy.Allow {
		o.up, err = p.dial(ctx, r)
	}
	if err != nil && ctx.Err() == nil {
		p.failed(v, o.id, err)
	}
	return o, err
}

// flowInfo is what the registry keeps of o.
func (o opening) flowInfo(c *client) FlowInfo {
	s := o.subject
	info := FlowInfo{
		Client: c.peer, Name: s.name, Addr: o.up.addr, Port: s.port, Protocol: policy.TCP, Channel: s.channel,
		Request: o.evidence, Decision: o.Decision, DecisionID: o.id,
	}
	resolved := o.name != "" || s.name != "" && slices.Contains(s.attributed, s.name)
	switch {
	case resolved && !o.opened:
		// Judged again as what it is: a connection to an address of that name.
		// (Where an upstream proxy resolved it there is no address to judge.)
		info.Resolved, info.Pinned = o.up.addr.IsValid(), c.p.cfg.Pinned(s.name)
		info.Request.Addr = o.up.addr
	case s.name != "":
		// It showed a name and went where the client chose. A policy that allows
		// the name must not keep it; one that denies it must cut it.
		info.Request.Finding = policy.FindingMismatch
	case o.opened:
		// Nothing was inspected: only an address target keeps it.
		info.Request.Finding, info.Request.Attributed = policy.FindingNone, nil
	}
	return info
}

// register adds o to the flows and judges it once more, lest it was admitted
// while the policy was swapped (perf.md, learned 7). false: it is cut.
func (p *Proxy) register(c *client, o opening) (f *Flow, end func(error), ok bool) {
	tcp, up := c.tcp, o.up.tcp
	f = p.cfg.Flows.Register(o.flowInfo(c), func() {
		reset(tcp)
		reset(up)
	})
	release := p.hold(o)
	end = func(err error) {
		release()
		f.End(err)
	}
	if f.Confirm(p.cfg.Policy.Load()).Verdict != policy.Allow {
		end(ErrRevoked)
		return f, end, false
	}
	return f, end, true
}

// hold keeps the attribution that a flow lives by.
func (p *Proxy) hold(o opening) (release func()) {
	if o.subject.name == "" || !o.up.addr.IsValid() || !slices.Contains(o.subject.attributed, o.subject.name) {
		return func() {}
	}
	return p.cfg.Names.Hold(o.up.addr, o.subject.name)
}

// relay forwards what was read of either side and hands both sockets over.
func (p *Proxy) relay(c *client, o opening) {
	f, end, ok := p.register(c, o)
	if !ok {
		return
	}
	if err := p.replay(c, f, o.up); err != nil {
		reset(c.tcp)
		reset(o.up.tcp)
		end(err)
		return
	}
	p.hand(c, f, o.up.tcp, end)
}

// replay passes on what was read before the verdict.
func (p *Proxy) replay(c *client, f *Flow, up upstream) error {
	if err := c.tcp.SetReadDeadline(noDeadline); err != nil {
		return err
	}
	n, err := write(c.tcp, up.early)
	f.AddBytes(0, n)
	if err != nil {
		return ErrClientReset
	}
	n, err = write(up.tcp, c.recorded)
	f.AddBytes(n, 0)
	if err != nil {
		return ErrUpstreamReset
	}
	c.forget()
	return nil
}

func write(conn *net.TCPConn, b []byte) (uint64, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := conn.Write(b)
	return uint64(n), err
}

// hand gives both sockets to the relay; the client's goroutine ends.
func (p *Proxy) hand(c *client, f *Flow, up *net.TCPConn, end func(error)) {
	c.handed = true
	Start(f, c.tcp, up, func(err error) {
		p.conns.Add(-1)
		end(err)
	})
}
