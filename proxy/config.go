//go:build linux

package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// Family says which addresses of a name are asked for.
type Family uint8

// The families.
const (
	FamilyAny Family = iota
	FamilyIPv4
	FamilyIPv6
)

// PolicySource gives the policy in force; nil denies everything as unprotected.
// *atomic.Pointer[policy.Compiled] is one.
type PolicySource interface{ Load() *policy.Compiled }

// Recorder is the log that decisions go to.
type Recorder interface {
	Record(e audit.Event) audit.Event
}

// Names says for which names the resolver handed an address out.
type Names interface {
	Names(addr netip.Addr) []string
	Hold(addr netip.Addr, name string) (release func())
}

// Limits bound what one client can make the proxy hold.
type Limits struct {
	// SniffTimeout is how long a client may take over its first message, counted
	// from its first byte (on ports 80 and 443, and where no bytes can help, from
	// the connection). Default 10 s.
	SniffTimeout time.Duration
	// SniffBytes bounds that message. Default 64 KiB.
	SniffBytes int
	// DialTimeout bounds resolving and dialling together. Default 10 s.
	DialTimeout time.Duration
	// MaxConns is how many client connections are held at a time; the rest are
	// reset. Default 16,384, or what the descriptors at hand are enough for: they
	// are needed to swap the policy and to resolve, too.
	MaxConns int
}

// Config is what a Proxy is made of. Policy, Log, Names, Resolve and Flows are
// required.
type Config struct {
	Policy PolicySource
	Log    Recorder
	Names  Names
	// Resolve asks the resolver that answers the sandbox. It judges nothing.
	Resolve func(ctx context.Context, name string, family Family) ([]netip.Addr, error)
	// Pinned says that the operator pinned name to its addresses; nil is none.
	Pinned func(name string) bool
	// Dial reaches an address; nil is a net.Dialer without MPTCP (which nft cannot
	// follow). It must return a *net.TCPConn, or bytes could not be spliced.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Local says that a destination is the proxy's or the sandbox's own: it is
	// never dialled. nil is none. Loopback and unspecified destinations are
	// refused without it.
	Local func(addr netip.Addr) bool
	// OriginalDst tells where a redirected connection was going; nil asks the
	// kernel (SO_ORIGINAL_DST). Another kind of redirection (TPROXY, a userspace
	// stack) brings its own.
	OriginalDst func(fd int, peer netip.AddrPort) (netip.AddrPort, error)
	// Connect begins the connections that Dial would make, without waiting for
	// them, so that an ordinary connection needs no goroutine (see Connector). nil
	// is what Dial does by default; where Dial is set and Connect is not, every
	// connection has a goroutine.
	Connect func(to netip.AddrPort) (fd int, err error)
	// UpstreamProxy, when set, is an HTTP proxy that every connection is made
	// through; its userinfo is sent as Proxy-Authorization.
	UpstreamProxy *url.URL
	// UpstreamResolves says that only the upstream proxy can resolve names: it is
	// given the judged name, and no address is checked.
	UpstreamResolves bool
	Flows            *Flows
	Limits           Limits
}

// Defaults fills what was left unset.
func (c *Config) Defaults() {
	if c.Limits.SniffTimeout == 0 {
		c.Limits.SniffTimeout = 10 * time.Second
	}
	if c.Limits.SniffBytes == 0 {
		c.Limits.SniffBytes = 64 << 10
	}
	if c.Limits.DialTimeout == 0 {
		c.Limits.DialTimeout = 10 * time.Second
	}
	if c.Limits.MaxConns == 0 {
		c.Limits.MaxConns = min(16384, affordable())
	}
	if c.Dial == nil && c.Connect == nil {
		c.Connect = Connector(nil)
	}
	if c.Dial == nil {
		d := &net.Dialer{}
		d.SetMultipathTCP(false)
		c.Dial = d.DialContext
	}
	if c.OriginalDst == nil {
		c.OriginalDst = originalDst
	}
	if c.Pinned == nil {
		c.Pinned = func(string) bool { return false }
	}
	if c.Local == nil {
		c.Local = func(netip.Addr) bool { return false }
	}
}

// A connection takes two descriptors, and for the moment of its handing over to a
// relay four, which few are in at a time; so many are left to the rest of the
// process.
const (
	connDescriptors = 3
	keptDescriptors = 2048
)

// affordable is how many connections the limit on descriptors allows for.
func affordable() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1
	}
	have := int(min(limit.Cur, 1<<20))
	return max(1, (have-min(keptDescriptors, have/2))/connDescriptors)
}

// Validate says everything that is wrong with c.
func (c *Config) Validate() error {
	var errs []error
	require := func(set bool, what string) {
		if !set {
			errs = append(errs, fmt.Errorf("proxy: %s is required", what))
		}
	}
	require(c.Policy != nil, "Policy")
	require(c.Log != nil, "Log")
	require(c.Names != nil, "Names")
	require(c.Resolve != nil, "Resolve")
	require(c.Flows != nil, "Flows")
	if u := c.UpstreamProxy; u != nil && (u.Scheme != "http" || u.Hostname() == "") {
		errs = append(errs, fmt.Errorf("proxy: upstream proxy %q: want http://HOST:PORT", u.Redacted()))
	}
	if c.UpstreamResolves && c.UpstreamProxy == nil {
		errs = append(errs, errors.New("proxy: an upstream proxy that resolves needs an upstream proxy"))
	}
	l := c.Limits
	if l.SniffTimeout < 0 || l.SniffBytes < 0 || l.DialTimeout < 0 || l.MaxConns < 0 {
		errs = append(errs, fmt.Errorf("proxy: negative limit in %+v", l))
	}
	return errors.Join(errs...)
}

// Proxy judges and forwards connections. Its methods are safe for concurrent
// use.
type Proxy struct {
	cfg   Config
	hello *tls.Config
	// conns counts the client connections that are held, relayed ones included.
	conns atomic.Int64
	// arrivals are those that have become flows, to be used again: they are half of
	// what a set-up would allocate, and so of what its collection costs the others.
	arrivals sync.Pool

	mu sync.Mutex
	// explicit are the addresses of explicit listeners: a connection redirected on
	// its way to one of them is a client of the explicit proxy.
	explicit map[netip.AddrPort]struct{}
}

// New makes a Proxy.
func New(c Config) (*Proxy, error) {
	c.Defaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Proxy{cfg: c, hello: helloConfig(), explicit: map[netip.AddrPort]struct{}{}}, nil
}

func (p *Proxy) setExplicit(at netip.AddrPort, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.explicit[at] = struct{}{}
	} else {
		delete(p.explicit, at)
	}
}

func (p *Proxy) isExplicit(at netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.explicit[at]
	return ok
}
