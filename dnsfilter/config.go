package dnsfilter

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// Dialer reaches an upstream; network is "udp" or "tcp", and a "udp" connection
// must be connected. *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Budget bounds what may be asked upstream below allowed wildcards, where the name
// itself carries bytes to whoever serves the zone (bypass B62). It is kept for
// each registrable domain (public suffix and one label), for a minute at a time;
// what the cache answers costs nothing. Zero members take the default.
type Budget struct {
	// Names is how many different questions (default 300).
	Names int
	// Bytes is the sum of the lengths of their names (default 16 KiB).
	Bytes int
}

// Config is what a Server is made of. Policy, Log and Names are required.
type Config struct {
	// Policy is the policy in force; nil from Load denies with "unprotected".
	Policy interface{ Load() *policy.Compiled }
	Log    interface{ Record(audit.Event) audit.Event }
	// Names learns which addresses were handed out for which name.
	Names interface {
		Add(name string, addrs []netip.Addr, ttl time.Duration)
	}
	// Kernel fills the kernel's sets before the answer is written; an error is
	// answered SERVFAIL. Nil where the kernel keeps none.
	Kernel func(ctx context.Context, name string, addrs []netip.Addr, ttl time.Duration) error
	// Upstreams are asked in this order, the healthy ones first. Without any,
	// only pins (and Engine's names) resolve.
	Upstreams []Upstream
	// Search is what the sandbox's resolv.conf searches. Clients append it
	// themselves, and the names are then judged as any other; Lookup does for the
	// names of one label that it is asked for.
	Search []string
	// Pins are names that the operator pinned to addresses, loopback allowed. They
	// are judged by name as any other, and never asked upstream.
	Pins map[string][]netip.Addr
	// Local says which addresses are the sandbox's own; they are special.
	Local func(netip.Addr) bool
	// Engine is the container engine's DNS, asked for names of one label only;
	// nil sends those to Upstreams.
	Engine *Upstream
	// Dial reaches upstreams; nil is a net.Dialer without Multipath TCP.
	Dial Dialer
	// RootCAs verify upstreams of DNS over TLS; nil is the system's.
	RootCAs *x509.CertPool
	Budget  Budget
	// CacheEntries and CacheBytes bound the cache (default 10,000 and 16 MiB).
	CacheEntries, CacheBytes int
	// ClientQueries bounds the questions of one client address that wait for an
	// upstream (default 256), AllQueries those of all (default 1,024); beyond it
	// they are denied "limit".
	ClientQueries, AllQueries int
	// Conns bounds the TCP connections (default 256).
	Conns int
	// IdleTimeout ends a TCP connection that asks nothing (default 30 s).
	IdleTimeout time.Duration
	// QueryTimeout is how long one question may take upstream in all (default
	// 4.5 s, under the 5 s of common stub resolvers), AttemptTimeout how long one
	// upstream is waited for (default 1.5 s).
	QueryTimeout, AttemptTimeout time.Duration
}

// withDefaults fills what was left zero.
func (c Config) withDefaults() Config {
	defaults := []struct {
		value *int
		is    int
	}{
		{&c.Budget.Names, 300},
		{&c.Budget.Bytes, 16 << 10},
		{&c.CacheEntries, 10_000},
		{&c.CacheBytes, 16 << 20},
		{&c.ClientQueries, 256},
		{&c.AllQueries, 1024},
		{&c.Conns, 256},
	}
	for _, d := range defaults {
		if *d.value == 0 {
			*d.value = d.is
		}
	}
	durations := []struct {
		value *time.Duration
		is    time.Duration
	}{
		{&c.IdleTimeout, 30 * time.Second},
		{&c.QueryTimeout, 4500 * time.Millisecond},
		{&c.AttemptTimeout, 1500 * time.Millisecond},
	}
	for _, d := range durations {
		if *d.value == 0 {
			*d.value = d.is
		}
	}
	if c.Local == nil {
		c.Local = func(netip.Addr) bool { return false }
	}
	if c.Dial == nil {
		dialer := new(net.Dialer)
		dialer.SetMultipathTCP(false)
		c.Dial = dialer
	}
	return c
}

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.Policy == nil {
		errs = append(errs, errors.New("dnsfilter: no policy"))
	}
	if c.Log == nil {
		errs = append(errs, errors.New("dnsfilter: no log"))
	}
	if c.Names == nil {
		errs = append(errs, errors.New("dnsfilter: no attribution table"))
	}
	for _, u := range c.Upstreams {
		if !u.Addr.IsValid() {
			errs = append(errs, errors.New("dnsfilter: upstream without an address"))
		}
	}
	if c.Engine != nil && !c.Engine.Addr.IsValid() {
		errs = append(errs, errors.New("dnsfilter: engine DNS without an address"))
	}
	for name, addrs := range c.Pins {
		if _, err := pinName(name); err != nil {
			errs = append(errs, err)
		}
		if len(addrs) == 0 {
			errs = append(errs, fmt.Errorf("dnsfilter: pinned name %q has no address", name))
		}
	}
	for _, n := range [...]int{
		c.Budget.Names, c.Budget.Bytes, c.CacheEntries, c.CacheBytes, c.ClientQueries, c.AllQueries, c.Conns,
		int(c.IdleTimeout), int(c.QueryTimeout), int(c.AttemptTimeout),
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("dnsfilter: negative limit %d", n))
		}
	}
	return errors.Join(errs...)
}

func pinName(name string) (string, error) {
	host, err := policy.ParseHost(name)
	if err != nil {
		return "", fmt.Errorf("dnsfilter: pinned name %q: %w", name, err)
	}
	if host.Name == "" {
		return "", fmt.Errorf("dnsfilter: pinned name %q is an address", name)
	}
	return host.Name, nil
}

// singleLabel says whether name is one label: a service beside the sandbox.
func singleLabel(name string) bool { return !strings.Contains(name, ".") }
