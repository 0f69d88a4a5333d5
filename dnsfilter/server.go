package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// Server is the resolver. Make one with New; its methods are safe for concurrent
// use.
type Server struct {
	cfg       Config
	began     time.Time
	pins      map[string][]pinAddr
	upstreams []*upstream
	engine    *upstream
	budget    *budget
	gate      *gate
	epoch     atomic.Pointer[epoch]
	replies   sync.Pool               // of *[maxUDPReply]byte
	verdict   atomic.Pointer[verdict] // the last that a view was given

	ctx    context.Context // ends with Serve, or Close
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // goroutines that outlive the call that started them
}

// pinAddr is one address of a pinned name.
type pinAddr netip.Addr

func (a pinAddr) record(k key) dns.RR {
	addr := netip.Addr(a)
	h := dns.RR_Header{Name: dns.Fqdn(k.name), Rrtype: k.qtype, Class: dns.ClassINET, Ttl: pinTTL}
	switch {
	case k.qtype == dns.TypeA && addr.Is4():
		return &dns.A{Hdr: h, A: addr.AsSlice()}
	case k.qtype == dns.TypeAAAA && addr.Is6():
		return &dns.AAAA{Hdr: h, AAAA: addr.AsSlice()}
	}
	return nil
}

// New makes a Server. It opens nothing until it is asked something.
func New(c Config) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	s := &Server{
		cfg:    c,
		began:  time.Now(),
		pins:   make(map[string][]pinAddr, len(c.Pins)),
		budget: newBudget(c.Budget),
		gate:   newGate(c.AllQueries, c.ClientQueries),
	}
	for written, addrs := range c.Pins {
		name, err := pinName(written)
		if err != nil {
			return nil, err
		}
		for _, addr := range addrs {
			s.pins[name] = append(s.pins[name], pinAddr(addr.Unmap()))
		}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, u := range c.Upstreams {
		s.upstreams = append(s.upstreams, s.newUpstream(u))
	}
	if c.Engine != nil {
		s.engine = s.newUpstream(*c.Engine)
	}
	s.epoch.Store(s.newEpoch())
	return s, nil
}

// Close ends every question in flight and every socket to an upstream, and
// waits for them. Serve does it when it returns; it is for servers that only Lookup.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	for _, u := range s.upstreams {
		u.close()
	}
	if s.engine != nil {
		s.engine.close()
	}
	s.work.Wait()
	return nil
}

// spawn runs f in a goroutine that Close waits for; false when it is too late.
func (s *Server) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Go(f)
	return true
}

// answerNow answers what needs nobody else: malformed and denied questions, and
// allowed ones whose checked answer is cached. done is false where answerLater
// must be called.
func (s *Server) answerNow(q *question, now time.Time) (r reply, done bool) {
	e := s.epoch.Load()
	p := s.cfg.Policy.Load()
	if p == nil {
		return s.unprotected(q), true
	}
	if found := e.cache.get(q.lower, q.qtype, now); found != nil && len(q.lower) > 0 {
		v := found.view.Load()
		if v == nil || v.policy != p || !v.fresh(now.Sub(s.began)) {
			return reply{}, false
		}
		return s.answerView(p, q, found, v, now), true
	}
	if d := e.denials.get(p, q); d != nil {
		r := d.reply
		r.edeID = s.record(q, &d.outcome).DecisionID
		return r, true
	}
	o, allowed := s.judgeQuestion(p, q)
	if !allowed {
		r := denialOf(p, &o)
		e.denials.put(q, &denial{policy: p, qtype: q.qtype, outcome: o, reply: r})
		r.edeID = s.record(q, &o).DecisionID
		return r, true
	}
	return reply{}, false
}

// judgeQuestion judges the name and type of a question.
func (s *Server) judgeQuestion(p *policy.Compiled, q *question) (o outcome, allowed bool) {
	name, d, err := q.name(p)
	o = outcome{name: name, decision: d}
	if err != nil {
		o.note = err.Error()
		return o, false
	}
	o.decision = judge(p, name, q.qtype)
	return o, o.decision.Verdict == policy.Allow
}

func (s *Server) unprotected(q *question) reply {
	o := outcome{name: string(q.lower)}
	o.decision.Reason = policy.ReasonUnprotected
	return s.deny(nil, q, &o)
}

// answerView logs and writes the decision on a checked answer.
func (s *Server) answerView(p *policy.Compiled, q *question, e *entry, v *view, now time.Time) reply {
	o := outcome{name: e.name, decision: v.decision}
	if v.odd != nil {
		o.note = v.odd.note
	}
	if v.decision.Verdict == policy.Deny {
		if v.odd != nil {
			o.addr = v.odd.dropped
		}
		return s.deny(p, q, &o)
	}
	s.record(q, &o)
	return reply{
		answer: answer{int(e.rcode), v.shown(e)},
		age:    uint32(max(0, (now.Sub(s.began)-e.stored)/time.Second)),
	}
}

// swapsEndured is how many swaps one question is judged anew for.
const swapsEndured = 8

// answerLater answers a question that may have to wait for upstream or the
// kernel. A swap in between starts it over under the new policy.
func (s *Server) answerLater(ctx context.Context, q *question, client netip.Addr) reply {
	var o outcome
	for range swapsEndured {
		e := s.epoch.Load()
		p := s.cfg.Policy.Load()
		if p == nil {
			return s.unprotected(q)
		}
		var allowed bool
		if o, allowed = s.judgeQuestion(p, q); !allowed {
			return s.deny(p, q, &o)
		}
		k := key{o.name, q.qtype}
		now := time.Now()
		found := e.cache.get(q.lower, q.qtype, now)
		if found == nil {
			var refused *reply
			found, refused = s.wait(e, p, q, &o, client, now)
			if refused != nil {
				return *refused
			}
			if found == nil {
				continue
			}
			now = time.Now()
		}
		v, err := s.viewOf(found, p)
		if err != nil {
			return s.fail(q, &o, err)
		}
		if err := s.attribute(ctx, k.name, found, v, now); err != nil {
			return s.fail(q, &o, err)
		}
		if s.cfg.Policy.Load() != p {
			continue
		}
		return s.answerView(p, q, found, v, now)
	}
	return s.fail(q, &o, errSwapped)
}

// wait fetches the answer within the limits. Neither an entry nor a reply means
// that the policy was swapped meanwhile.
func (s *Server) wait(e *epoch, p *policy.Compiled, q *question, o *outcome, client netip.Addr, now time.Time) (*entry, *reply) {
	k := key{o.name, q.qtype}
	if !s.budget.spend(k, o.decision, now) {
		o.decision.Verdict, o.decision.Reason = policy.Deny, policy.ReasonLimit
		o.note = "more new names below this wildcard than its budget allows"
		r := s.deny(p, q, o)
		return nil, &r
	}
	if !s.gate.enter(client) {
		o.decision.Verdict, o.decision.Reason = policy.Deny, policy.ReasonLimit
		o.note, o.rcode = "too many questions wait for an answer", dns.RcodeRefused
		r := s.deny(p, q, o)
		return nil, &r
	}
	defer s.gate.leave(client)
	found, err := s.fetch(e, p, k, now)
	if errors.Is(err, errSwapped) && s.ctx.Err() == nil {
		return nil, nil
	}
	if err != nil {
		r := s.fail(q, o, err)
		return nil, &r
	}
	return found, nil
}

// attribute writes who is told which addresses, to the table and the kernel,
// before they are told; answers that were told lately pass.
func (s *Server) attribute(ctx context.Context, name string, e *entry, v *view, now time.Time) error {
	since := now.Sub(s.began)
	if v.fresh(since) || v.decision.Verdict == policy.Deny {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fresh(since) {
		return nil
	}
	addrs, ttl := v.addrs(e), time.Duration(e.ttl)*time.Second
	s.cfg.Names.Add(name, addrs, ttl)
	if s.cfg.Kernel != nil {
		if err := s.cfg.Kernel(ctx, name, addrs, ttl); err != nil {
			return fmt.Errorf("fill the kernel's sets: %w", err)
		}
	}
	v.attributed.Store(int64(since))
	return nil
}

// guarded answers a question whatever happens: a panic is this question's
// SERVFAIL and an event, not the end.
func (s *Server) guarded(q *question, work func() reply) (r reply) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Record(audit.Event{
				Kind: audit.KindError, Channel: audit.ChannelDNS, Name: string(q.lower), QType: typeWord(q.qtype),
				Error: "panic", Message: fmt.Sprintf("%v\n%s", p, debug.Stack()),
			})
			r = reply{answer: answer{rcode: dns.RcodeServerFailure}, hasEDE: true, edeText: "exeat: internal error"}
		}
	}()
	return work()
}

// Serve answers on the sockets given, which it closes, until ctx ends; then it
// closes the Server. An error is that of a socket that failed before.
func (s *Server) Serve(ctx context.Context, udp []net.PacketConn, tcp []net.Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var serving sync.WaitGroup
	run := func(serve func() error) {
		serving.Go(func() {
			if err := serve(); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	slots := make(chan struct{}, s.cfg.Conns)
	for _, conn := range udp {
		run(func() error { return s.serveUDP(ctx, conn) })
	}
	for _, ln := range tcp {
		run(func() error { return s.serveTCP(ctx, ln, slots) })
	}
	<-ctx.Done()
	for _, conn := range udp {
		closeQuietly(conn)
	}
	for _, ln := range tcp {
		closeQuietly(ln)
	}
	err := s.Close()
	serving.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		err = errors.Join(cause, err)
	}
	return err
}
