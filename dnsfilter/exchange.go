package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// upstreamError is a failure to get an answer, with the Extended DNS Error that
// tells it: 22 where upstreams answered that they cannot, 23 where none answered.
type upstreamError struct {
	ede uint16
	err error
}

func (e *upstreamError) Error() string { return e.err.Error() }
func (e *upstreamError) Unwrap() error { return e.err }

// errSwapped ends an exchange whose epoch has ended: nothing more may be sent.
var errSwapped = errors.New("the policy was swapped")

// upstream is an Upstream with its sockets.
type upstream struct {
	Upstream
	server *Server
	health health
	// ports are the UDP sockets; nil where every question has a fresh one.
	ports   *ports
	streams streams
	// folds is set once a UDP reply came back with the letter case folded: such a
	// resolver cannot be told from a forger over UDP, and is asked over TCP.
	folds atomic.Bool
	// plain is set once it refused EDNS.
	plain atomic.Bool
}

func (s *Server) newUpstream(u Upstream) *upstream {
	up := &upstream{Upstream: u, server: s}
	up.health.state = Health{Upstream: u.String(), Healthy: true}
	up.streams.init(up)
	if !u.TLS && !u.Addr.Addr().IsLoopback() {
		up.ports = new(ports)
	}
	return up
}

// close ends every socket.
func (u *upstream) close() {
	if u.ports != nil {
		u.ports.close()
	}
	u.streams.close()
}

// ask puts one question to this upstream and gives the reply, whatever its code.
func (u *upstream) ask(e *epoch, deadline time.Time, name string, qtype uint16) (got, error) {
	var w query
	for {
		edns := !u.plain.Load()
		if err := w.build(name, qtype, edns); err != nil {
			return got{}, err
		}
		m, err := u.exchange(e, deadline, &w)
		if err != nil {
			return got{}, err
		}
		rcode := m.rcode()
		refusesEDNS := rcode == dns.RcodeFormatError || rcode == dns.RcodeNotImplemented || rcode == dns.RcodeBadVers
		if edns && refusesEDNS { // RFC 6891 section 7
			u.plain.Store(true)
			continue
		}
		return m, nil
	}
}

// exchange sends w by UDP, and by stream where UDP cannot carry the answer. (A
// deadline, not a context of its own: that would be a timer a question.)
func (u *upstream) exchange(e *epoch, deadline time.Time, w *query) (got, error) {
	if !u.TLS && !u.folds.Load() {
		m, err := u.exchangeUDP(e, deadline, w)
		if !errors.Is(err, errUseStream) {
			return m, err
		}
	}
	ctx, cancel := context.WithDeadline(e.ctx, deadline)
	defer cancel()
	m, err := u.streams.exchange(ctx, e, w)
	return got{Msg: m}, err
}

// attempts bounds the rounds over the upstreams.
const attempts = 3

// askAny asks the upstreams in turn, the resting ones last, until one answers
// the question: NOERROR or NXDOMAIN.
func (s *Server) askAny(e *epoch, deadline time.Time, name string, qtype uint16) (got, error) {
	ups := s.upstreamsFor(name)
	if len(ups) == 0 {
		return got{}, &upstreamError{dns.ExtendedErrorCodeNoReachableAuthority, errors.New("no upstream is configured for this name")}
	}
	var last error
	for range attempts {
		answered := 0
		for _, u := range ups {
			began := time.Now()
			attempt := began.Add(s.cfg.AttemptTimeout)
			if deadline.Before(attempt) {
				attempt = deadline
			}
			m, err := u.ask(e, attempt, name, qtype)
			now := time.Now()
			if e.ctx.Err() != nil {
				return got{}, errSwapped
			}
			if err != nil {
				u.health.failed(err, now)
				last = &upstreamError{dns.ExtendedErrorCodeNetworkError, fmt.Errorf("ask %s: %w", u, err)}
			} else {
				u.health.succeeded(now.Sub(began), now)
				if rcode := m.rcode(); rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError {
					return m, nil
				}
				answered++
				last = &upstreamError{
					dns.ExtendedErrorCodeNoReachableAuthority,
					fmt.Errorf("%s answered %s", u, dns.RcodeToString[m.rcode()]),
				}
			}
			if !now.Before(deadline) {
				return got{}, last
			}
		}
		if answered == len(ups) {
			break // all of them are there and say no; asking again changes nothing
		}
	}
	return got{}, last
}

// upstreamsFor gives whom to ask about name, the resting ones last.
func (s *Server) upstreamsFor(name string) []*upstream {
	if s.engine != nil && singleLabel(name) && name != "." {
		return []*upstream{s.engine}
	}
	if len(s.upstreams) == 1 {
		return s.upstreams
	}
	now := time.Now()
	order := make([]*upstream, 0, len(s.upstreams))
	var resting []*upstream
	for _, u := range s.upstreams {
		if u.health.resting(now) {
			resting = append(resting, u)
		} else {
			order = append(order, u)
		}
	}
	return append(order, resting...)
}
