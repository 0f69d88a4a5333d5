package dnsfilter

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/policy"
)

// pinTTL is how long a pinned answer may be kept by clients.
const pinTTL = 60

// fetch gives the answer to k from the cache, a question in flight, the pins or
// upstream. p has allowed k.
func (s *Server) fetch(e *epoch, p *policy.Compiled, k key, now time.Time) (*entry, error) {
	if err := e.failed.get(k, now); err != nil {
		return nil, err
	}
	v, err, _ := e.flights.Do(strconv.Itoa(int(k.qtype))+" "+k.name, func() (_ any, err error) {
		defer func() { // in here, or the flight's other passengers would panic too
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
		}()
		if found := e.cache.get([]byte(k.name), k.qtype, now); found != nil {
			return found, nil
		}
		found, err := s.resolve(e, p, k, now.Add(s.cfg.QueryTimeout))
		if err != nil && !errors.Is(err, errSwapped) {
			e.failed.put(k, err, time.Now())
		}
		return found, err
	})
	if err != nil {
		return nil, err
	}
	return v.(*entry), nil
}

// resolve asks upstream, follows aliases that the reply left open, and caches.
func (s *Server) resolve(e *epoch, p *policy.Compiled, k key, deadline time.Time) (*entry, error) {
	if addrs, pinned := s.pins[k.name]; pinned {
		return s.pinned(e, k, addrs)
	}
	var r records
	ask := k.name
	for {
		reply, err := s.askAny(e, deadline, ask, k.qtype)
		if err != nil {
			return nil, err
		}
		if reply.Msg == nil && ask == k.name {
			return s.keepPlain(e, p, k, &reply.plain)
		}
		m, err := reply.parsed(key{ask, k.qtype})
		if err != nil {
			return nil, &upstreamError{dns.ExtendedErrorCodeNoReachableAuthority, err}
		}
		before := len(r.chain)
		if err := r.collect(ask, k.qtype, m); err != nil {
			return nil, &upstreamError{dns.ExtendedErrorCodeNoReachableAuthority, err}
		}
		if !r.incomplete() || len(r.chain) == before {
			break
		}
		if _, denied := deniedAlias(p, r.chain); denied {
			break // the view says so
		}
		host, err := policy.ParseWireHost(strings.TrimSuffix(r.last, "."))
		if err != nil || host.Name == "" {
			break
		}
		ask = host.Name
	}
	return s.keep(e, p, k, &r)
}

// keep packs and caches the records, and judges them while they are at hand.
func (s *Server) keep(e *epoch, p *policy.Compiled, k key, r *records) (*entry, error) {
	buf := s.replyBuffer()
	defer s.replies.Put(buf)
	found, m, err := r.entry(k, time.Since(s.began), buf[:])
	if err != nil {
		return nil, &upstreamError{dns.ExtendedErrorCodeNoReachableAuthority, err}
	}
	v, err := s.inspect(found, p, m)
	if err != nil {
		return nil, err
	}
	found.view.Store(v)
	e.cache.put(found)
	return found, nil
}

// pinned is the operator's own answer: addresses for A and AAAA, else NODATA.
func (s *Server) pinned(e *epoch, k key, addrs []pinAddr) (*entry, error) {
	r := records{}
	for _, a := range addrs {
		if rr := a.record(k); rr != nil {
			r.answer = append(r.answer, rr)
		}
	}
	if len(r.answer) == 0 {
		r.soa = &dns.SOA{
			Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: pinTTL},
			Ns:  "pinned.exeat.invalid.", Mbox: "hostmaster.exeat.invalid.", Serial: 1,
			Refresh: 3600, Retry: 600, Expire: 86400, Minttl: pinTTL,
		}
	}
	found, _, err := r.entry(k, time.Since(s.began), nil)
	if err != nil {
		return nil, err
	}
	found.pinned = true
	e.cache.put(found)
	return found, nil
}

// errNoAnswer is for Lookup: the name does not exist or has no addresses.
var errNoAnswer = errors.New("no such name, or no address")
