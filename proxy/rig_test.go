//go:build linux

package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// rig is a proxy with a small internet: origins on loopback that stand for
// documentation addresses, and a resolver that knows them by name.
type rig struct {
	t      testing.TB
	policy atomic.Pointer[policy.Compiled]
	log    *logged
	names  *attribution.Table
	flows  *Flows
	proxy  *Proxy
	ctx    context.Context
	cancel context.CancelFunc

	mu sync.Mutex
	// hosts is what resolves to what.
	hosts map[string][]netip.Addr
	// origins is where a documentation address really is.
	origins map[netip.AddrPort]string
	// dialled are the addresses that the proxy dialled.
	dialled []netip.AddrPort
	// going says where a connection to a local port was redirected from.
	going map[uint16]netip.AddrPort
	// deaf is an address that answers no connection.
	deaf string
}

// logged keeps events, and answers for the ids.
type logged struct {
	mu     sync.Mutex
	n      int
	events []audit.Event
	more   chan struct{}
}

func (l *logged) Record(e audit.Event) audit.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	if e.Kind == audit.KindDecision {
		e.DecisionID = "test-" + string(rune('a'+l.n%26))
	}
	l.events = append(l.events, e)
	close(l.more)
	l.more = make(chan struct{})
	return e
}

// find waits for the first event that is wanted.
func (l *logged) find(t testing.TB, what string, want func(audit.Event) bool) audit.Event {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		l.mu.Lock()
		for _, e := range l.events {
			if want(e) {
				l.mu.Unlock()
				return e
			}
		}
		more, events := l.more, slices.Clone(l.events)
		l.mu.Unlock()
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("no event %s among %+v", what, events)
		}
	}
}

// decisions are the decisions so far.
func (l *logged) decisions() []audit.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []audit.Event
	for _, e := range l.events {
		if e.Kind == audit.KindDecision {
			out = append(out, e)
		}
	}
	return out
}

// decision waits for the first decision.
func (l *logged) decision(t testing.TB) audit.Event {
	t.Helper()
	return l.find(t, "decision", func(e audit.Event) bool { return e.Kind == audit.KindDecision })
}

// newRig starts a proxy under the policy document.
func newRig(t testing.TB, document string, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, log: &logged{more: make(chan struct{})}, names: attribution.New(time.Hour, nil),
		hosts: map[string][]netip.Addr{}, origins: map[netip.AddrPort]string{}, going: map[uint16]netip.AddrPort{},
	}
	r.deaf = deafAddress(t)
	r.swap(document)
	r.flows = NewFlows(r.log)
	cfg := Config{
		Policy: &r.policy, Log: r.log, Names: r.names, Flows: r.flows,
		Resolve: r.resolve, Dial: r.dial, Connect: r.connect, OriginalDst: r.originalDst,
	}
	for _, c := range change {
		c(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.proxy = p
	ctx, cancel := context.WithCancel(context.Background())
	r.ctx, r.cancel = ctx, cancel
	t.Cleanup(func() { cancel(); r.flows.Close() })
	return r
}

// swap puts a policy in force, without judging open flows again.
func (r *rig) swap(document string) *policy.Compiled {
	r.t.Helper()
	d, _, err := policy.Parse([]byte(document))
	if err != nil {
		r.t.Fatal(err)
	}
	var generation uint64 = 1
	if old := r.policy.Load(); old != nil {
		generation = old.Generation() + 1
	}
	c := policy.Compile(d, policy.Options{Generation: generation})
	r.policy.Store(c)
	return c
}

// deafAddress is of a listener whose queue is full: the kernel drops what else
// comes.
func deafAddress(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := sockaddrPort(sa)
	dialTCP(t, at.String()) // fills the queue
	return at.String()
}

func (r *rig) resolve(_ context.Context, name string, _ Family) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	addrs, ok := r.hosts[name]
	if !ok {
		return nil, errors.New("no such host")
	}
	return addrs, nil
}

func (r *rig) dial(ctx context.Context, network, address string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.dialled = append(r.dialled, at)
	real, ok := r.origins[at]
	r.mu.Unlock()
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: network, Err: unix.ECONNREFUSED}
	}
	if real == "silence" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var d net.Dialer
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp", real)
}

// connect is dial for the connections that have no goroutine.
func (r *rig) connect(to netip.AddrPort) (int, error) {
	r.mu.Lock()
	r.dialled = append(r.dialled, to)
	real, ok := r.origins[to]
	r.mu.Unlock()
	if !ok {
		return -1, unix.ECONNREFUSED
	}
	if real == "silence" {
		real = r.deaf
	}
	return Connector(nil)(netip.MustParseAddrPort(real))
}

func (r *rig) originalDst(fd int, _ netip.AddrPort) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	local := sockaddrPort(sa)
	r.mu.Lock()
	defer r.mu.Unlock()
	if to, ok := r.going[local.Port()]; ok {
		return to, nil
	}
	return local, nil
}

// host makes name resolve to addrs, and attributes them as the resolver would
// when the sandbox asked.
func (r *rig) host(name string, attributed bool, addrs ...string) {
	var list []netip.Addr
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	r.mu.Lock()
	r.hosts[name] = list
	r.mu.Unlock()
	if attributed {
		r.names.Add(name, list, time.Minute)
	}
}

// origin puts a server that handles each connection at a documentation address.
func (r *rig) origin(at string, handle func(*net.TCPConn)) {
	r.t.Helper()
	ln := listenLoopback(r.t)
	r.place(at, ln.Addr().String())
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[*net.TCPConn]bool{}
	wg.Go(func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() { handle(c); c.Close() })
		}
	})
	r.t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

func (r *rig) place(at, real string) {
	r.mu.Lock()
	r.origins[netip.MustParseAddrPort(at)] = real
	r.mu.Unlock()
}

// dials are the addresses dialled so far.
func (r *rig) dials() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, d := range r.dialled {
		out = append(out, d.String())
	}
	return out
}

func listenLoopback(t testing.TB) *net.TCPListener {
	t.Helper()
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// transparent gives the address of a listener whose connections were on their
// way to dst.
func (r *rig) transparent(dst string) string {
	r.t.Helper()
	ln := listenLoopback(r.t)
	at, err := addrPort(ln.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	if dst != "" {
		r.mu.Lock()
		r.going[at.Port()] = netip.MustParseAddrPort(dst)
		r.mu.Unlock()
	}
	r.serve(func() error { return r.proxy.ServeTransparent(r.ctx, ln) })
	return at.String()
}

// explicit gives the URL of an explicit proxy listener.
func (r *rig) explicit() *url.URL {
	r.t.Helper()
	ln := listenLoopback(r.t)
	r.serve(func() error { return r.proxy.ServeExplicit(r.ctx, ln) })
	return &url.URL{Scheme: "http", Host: ln.Addr().String()}
}

// serve runs f until the test ends, and checks that it ends with the context.
func (r *rig) serve(f func() error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	r.t.Cleanup(func() {
		r.cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				r.t.Errorf("serve ended with %v", err)
			}
		case <-time.After(30 * time.Second):
			r.t.Error("serve did not end")
		}
	})
}

func dialTCP(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// certificates are a throw-away certificate and the pool that trusts it.
type certificates struct {
	pool *x509.CertPool
	cert tls.Certificate
}

// newCertificates makes one self-signed certificate for names.
func newCertificates(t testing.TB, names ...string) certificates {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return certificates{pool: pool, cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}
}

// isTestLocal is a sandbox's own address.
func isTestLocal(a netip.Addr) bool { return a == netip.MustParseAddr("198.51.100.1") }
