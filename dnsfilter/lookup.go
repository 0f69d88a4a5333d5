package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/policy"
)

// Family is which addresses a Lookup wants.
type Family uint8

// The families. The zero value is both.
const (
	FamilyBoth Family = iota
	FamilyIPv4
	FamilyIPv6
)

// ErrUnresolvable is wrapped by Lookup's error where a name that is allowed has no
// answer: a failure, never a denial.
var ErrUnresolvable = errors.New("unresolvable")

// DeniedError is Lookup's error where the policy denies asking for the name.
type DeniedError struct {
	Name     string
	Decision policy.Decision
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("%s: denied, reason %s", e.Name, e.Decision.Reason)
}

// Lookup resolves name for the proxy's dial: same judgement, budget, cache and
// pins as a client's question, but nothing is logged and nothing attributed. The
// addresses are as upstream gave them: the caller judges each with its port
// (policy.Compiled.DecideAddress, pinned as Pinned says) before it dials.
func (s *Server) Lookup(ctx context.Context, name string, family Family) ([]netip.Addr, error) {
	host, err := policy.ParseWireHost(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnresolvable, err)
	}
	if host.Addr.IsValid() {
		return []netip.Addr{host.Addr}, nil
	}
	addrs, err := s.lookupName(ctx, host.Name, family)
	if !errors.Is(err, errNoAnswer) || !singleLabel(host.Name) {
		return addrs, err
	}
	for _, domain := range s.cfg.Search {
		found, searchErr := s.lookupName(ctx, host.Name+"."+domain, family)
		if searchErr == nil {
			return found, nil
		}
	}
	return nil, err
}

// Pinned says whether the operator pinned name to addresses.
func (s *Server) Pinned(name string) bool {
	_, pinned := s.pins[name]
	return pinned
}

type found struct {
	addrs []netip.Addr
	err   error
}

// lookupName asks for both families at once where both are wanted.
func (s *Server) lookupName(ctx context.Context, name string, family Family) ([]netip.Addr, error) {
	var types []uint16
	switch family {
	case FamilyIPv4:
		types = []uint16{dns.TypeA}
	case FamilyIPv6:
		types = []uint16{dns.TypeAAAA}
	case FamilyBoth:
		types = []uint16{dns.TypeAAAA, dns.TypeA}
	}
	results := make([]chan found, len(types))
	for i, qtype := range types {
		results[i] = make(chan found, 1)
		if addrs, done := s.lookupCached(key{name, qtype}); done {
			results[i] <- addrs
			continue
		}
		if !s.spawn(func() {
			addrs, err := s.lookupKey(key{name, qtype})
			results[i] <- found{addrs, err}
		}) {
			return nil, fmt.Errorf("%w: %s: the resolver has ended", ErrUnresolvable, name)
		}
	}
	var addrs []netip.Addr
	var errs error
	for _, result := range results {
		select {
		case r := <-result:
			addrs = append(addrs, r.addrs...)
			if errs == nil || errors.Is(errs, errNoAnswer) { // the first that tells more
				errs = r.err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %s: %w", ErrUnresolvable, name, ctx.Err())
		}
	}
	if len(addrs) > 0 {
		return addrs, nil
	}
	return nil, errs
}

// lookupCached answers from the cache without a goroutine.
func (s *Server) lookupCached(k key) (found, bool) {
	e := s.epoch.Load()
	p := s.cfg.Policy.Load()
	if p == nil {
		return found{}, false
	}
	cached := e.cache.get([]byte(k.name), k.qtype, time.Now())
	if cached == nil {
		return found{}, false
	}
	addrs, err := s.allowedAddrs(p, cached)
	return found{addrs, err}, true
}

// lookupKey asks; a swap in between starts it over.
func (s *Server) lookupKey(k key) ([]netip.Addr, error) {
	for range swapsEndured {
		e := s.epoch.Load()
		p := s.cfg.Policy.Load()
		if p == nil {
			return nil, &DeniedError{k.name, policy.Decision{Reason: policy.ReasonUnprotected}}
		}
		d := judge(p, k.name, k.qtype)
		now := time.Now()
		if d.Verdict == policy.Allow && !s.budget.spend(k, d, now) {
			d.Verdict, d.Reason = policy.Deny, policy.ReasonLimit
		}
		if d.Verdict == policy.Deny {
			return nil, &DeniedError{k.name, d}
		}
		fetched, err := s.fetch(e, p, k, now)
		if errors.Is(err, errSwapped) && s.ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrUnresolvable, k.name, err)
		}
		return s.allowedAddrs(p, fetched)
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrUnresolvable, k.name, errSwapped)
}

// allowedAddrs are all addresses of an answer whose question and aliases p allows.
func (s *Server) allowedAddrs(p *policy.Compiled, e *entry) ([]netip.Addr, error) {
	v, err := s.viewOf(e, p)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnresolvable, e.name, err)
	}
	if v.decision.Verdict == policy.Deny && (v.odd == nil || !v.odd.dropped.IsValid()) {
		return nil, &DeniedError{e.name, v.decision}
	}
	addrs := e.sections().addresses()
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnresolvable, e.name, errNoAnswer)
	}
	return addrs, nil
}
