//go:build linux

package proxy

import (
	"context"
	"errors"
	"net/netip"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// established is the answer to a CONNECT that is let in.
const established = "HTTP/1.1 200 Connection established\r\n\r\n"

// explicitConn serves a client that knows it speaks to a proxy.
func (p *Proxy) explicitConn(ctx context.Context, c *client) {
	c.dst = netip.AddrPort{}
	s := c.sniff(true, 0, false)
	switch s.wire {
	case wireHTTP1:
		p.serveHTTP1(ctx, c, &ready{}, true)
	case wireUnknown:
		// It went away, or was slow, before it asked for anything.
		if !s.closed {
			p.refuse(c, subject{channel: audit.ChannelHTTP}, policy.ReasonLimit)
		}
	case wireTLS, wireHTTP2, wireOpaque:
		p.refuse(c, subject{channel: audit.ChannelHTTP}, policy.ReasonMalformed)
	}
}

// connect serves a CONNECT: its authority is judged, dialled where that can be
// done already, and then what is inside is read as any connection is.
func (s *session) connect(h head) bool {
	if !s.explicit {
		// A redirected client that asks somebody else's proxy for a tunnel: what it
		// asks for is not where it went.
		return s.malformed()
	}
	c := s.c
	c.dst = netip.AddrPortFrom(h.uri.host.Addr, h.uri.port)
	c.authority = h.uri.host.Name
	pol := s.p.cfg.Policy.Load()
	v := s.p.judge(pol, c.connectSubject())
	up, ok := s.admitConnect(pol, v)
	if !ok {
		return false
	}
	_, err := c.tcp.Write([]byte(established))
	c.deadline(noDeadline)
	c.first.Store(nobody)
	if err = errors.Join(err, s.rewind()); err != nil {
		if up.tcp != nil {
			s.p.record(v) // nobody is left to say more, and it was reached
		}
		reset(up.tcp)
		return false
	}
	s.p.inspect(s.ctx, c, up)
	return false
}

// connectSubject is a CONNECT authority before its inner bytes.
func (c *client) connectSubject() subject {
	s := c.base()
	s.kind = policy.KindAsk
	s.channel = audit.ChannelConnect
	if s.dst.IsValid() && !mustParse(s.port) {
		// To an address: whatever comes may pass if the address's name may.
		s.kind = policy.KindConnection
	}
	return s
}

// admitConnect answers a CONNECT that is refused or fails, and dials one that is
// let in. A CONNECT to an address on a port where the inner bytes will show a
// name is let in undialled: they decide.
func (s *session) admitConnect(pol *policy.Compiled, v verdict) (upstream, bool) {
	p, c := s.p, s.c
	if v.Verdict != policy.Allow {
		inside := c.authority == "" && mustParse(v.subject.port) && !hopeless(v.Reason) && v.Reason != policy.ReasonSpecialAddress
		if !inside {
			c.answer(deniedAnswer(v, p.record(v)))
		}
		return upstream{}, inside
	}
	r, v, err := p.route(s.ctx, pol, v)
	if err == nil && v.Verdict != policy.Allow {
		c.answer(deniedAnswer(v, p.record(v)))
		return upstream{}, false
	}
	var up upstream
	if err == nil {
		up, err = p.dial(s.ctx, r)
	}
	if err != nil {
		id := p.record(v)
		p.failed(v, id, err)
		c.answer(failedAnswer(v, id, err))
		return upstream{}, false
	}
	return up, true
}

// rewind makes what the session read ahead of its client recorded bytes again.
func (s *session) rewind() error {
	ahead, err := s.in.Peek(s.in.Buffered())
	if err != nil {
		return errors.Join(errors.New("rewind"), err)
	}
	if len(ahead)+len(s.src.again) == 0 {
		return nil
	}
	s.c.recorded = append(append(make([]byte, 0, 4096), ahead...), s.src.again...)
	s.c.next = 0
	return nil
}
