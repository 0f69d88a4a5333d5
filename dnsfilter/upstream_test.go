package dnsfilter_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/dnsfilter"
)

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

// reply packs the answer to m with one address.
func answerWith(m *dns.Msg, addr string) *dns.Msg {
	var r dns.Msg
	r.SetReply(m)
	rr, err := dns.NewRR(m.Question[0].Name + " 60 IN A " + addr)
	if err != nil {
		panic(err)
	}
	r.Answer = []dns.RR{rr}
	return &r
}

// forger sends, before the true answer, what forge makes of it.
func forger(forge func(r *dns.Msg)) dns.HandlerFunc {
	return func(w dns.ResponseWriter, m *dns.Msg) {
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			forged := answerWith(m, "198.51.100.66")
			forge(forged)
			_ = w.WriteMsg(forged)
		}
		_ = w.WriteMsg(answerWith(m, "203.0.113.1"))
	}
}

func TestForgedRepliesAreWaitedOut(t *testing.T) {
	cases := map[string]func(*dns.Msg){
		"another id":           func(r *dns.Msg) { r.Id++ },
		"another letter case":  func(r *dns.Msg) { r.Question[0].Name = strings.ToLower(r.Question[0].Name) },
		"another name":         func(r *dns.Msg) { r.Question[0].Name = "evil.test." },
		"another type":         func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeAAAA },
		"another class":        func(r *dns.Msg) { r.Question[0].Qclass = dns.ClassCHAOS },
		"not a reply":          func(r *dns.Msg) { r.Response = false },
		"no question":          func(r *dns.Msg) { r.Question = nil },
		"two questions":        func(r *dns.Msg) { r.Question = append(r.Question, r.Question[0]) },
		"another opcode":       func(r *dns.Msg) { r.Opcode = dns.OpcodeNotify },
		"truncated and not it": func(r *dns.Msg) { r.Id++; r.Truncated = true },
	}
	const name = "a-rather-long-name-for-letter-case.test"
	for what, forge := range cases {
		t.Run(what, func(t *testing.T) {
			f := start(t, allow(name), nil, newOrigin(t, forger(forge)))
			r := f.ask(t, name, dns.TypeA)
			if got := texts(r.Answer); got != name+". 60 IN A 203.0.113.1" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestAResolverThatFoldsCaseIsAskedByTCP(t *testing.T) {
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) {
		m.Question[0].Name = strings.ToLower(m.Question[0].Name)
		_ = w.WriteMsg(answerWith(m, "203.0.113.1"))
	})
	f := start(t, allow("a-rather-long-name.test"), nil, o)
	if r := f.ask(t, "a-rather-long-name.test", dns.TypeA); len(r.Answer) != 1 {
		t.Fatalf("got %v", r)
	}
}

func TestTruncatedRepliesAreAskedForByTCP(t *testing.T) {
	o := newOrigin(t, nil, crowd(200)...)
	f := start(t, allow("crowd.test"), nil, o)
	var m dns.Msg
	m.SetQuestion("crowd.test.", dns.TypeA)
	if r := f.exchange(t, "tcp", f.tcp, &m); len(r.Answer) != 200 {
		t.Errorf("got %d of 200 records", len(r.Answer))
	}
	if n := len(o.questions()); n != 2 {
		t.Errorf("upstream was asked %d times, want once by each", n)
	}
}

func TestFailuresAreErrorsNotDenials(t *testing.T) {
	silent := func(dns.ResponseWriter, *dns.Msg) {}
	rcode := func(code int) dns.HandlerFunc {
		return func(w dns.ResponseWriter, m *dns.Msg) {
			var r dns.Msg
			_ = w.WriteMsg(r.SetRcode(m, code))
		}
	}
	loop := func(w dns.ResponseWriter, m *dns.Msg) {
		var r dns.Msg
		r.SetReply(m)
		a, _ := dns.NewRR("a.test. 60 IN CNAME b.test.")
		b, _ := dns.NewRR("b.test. 60 IN CNAME a.test.")
		r.Answer = []dns.RR{a, b}
		_ = w.WriteMsg(&r)
	}
	endless := func(w dns.ResponseWriter, m *dns.Msg) {
		var r dns.Msg
		r.SetReply(m)
		rr, _ := dns.NewRR(m.Question[0].Name + " 60 IN CNAME x" + m.Question[0].Name)
		r.Answer = []dns.RR{rr}
		_ = w.WriteMsg(&r)
	}
	garbage := func(w dns.ResponseWriter, m *dns.Msg) {
		b, _ := answerWith(m, "203.0.113.1").Pack()
		_, _ = w.Write(b[:len(b)-3])
	}
	cases := map[string]struct {
		handle dns.HandlerFunc
		ede    uint16
	}{
		"an upstream that is silent":        {silent, dns.ExtendedErrorCodeNetworkError},
		"one that answers SERVFAIL":         {rcode(dns.RcodeServerFailure), dns.ExtendedErrorCodeNoReachableAuthority},
		"one that answers REFUSED":          {rcode(dns.RcodeRefused), dns.ExtendedErrorCodeNoReachableAuthority},
		"a CNAME loop":                      {loop, dns.ExtendedErrorCodeNoReachableAuthority},
		"a CNAME chain without end":         {endless, dns.ExtendedErrorCodeNoReachableAuthority},
		"a reply that does not parse":       {garbage, dns.ExtendedErrorCodeNetworkError},
		"one that does not know any opcode": {rcode(dns.RcodeNotImplemented), dns.ExtendedErrorCodeNoReachableAuthority},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			o := newOrigin(t, c.handle)
			f := start(t, allow("a.test"), func(c *dnsfilter.Config) {
				c.AttemptTimeout, c.QueryTimeout = 100*time.Millisecond, 400*time.Millisecond
			}, o)
			r := f.ask(t, "a.test", dns.TypeA)
			if ext := ede(r); r.Rcode != dns.RcodeServerFailure || ext == nil || ext.InfoCode != c.ede {
				t.Errorf("answered %s with %v", dns.RcodeToString[r.Rcode], ext)
			}
			events := f.log.all()
			last := events[len(events)-1]
			if last.Kind != audit.KindError || last.Error != audit.ErrorUnresolvable || last.Message == "" {
				t.Errorf("logged %+v", last)
			}
			asked := len(o.questions())
			if r := f.ask(t, "a.test", dns.TypeA); r.Rcode != dns.RcodeServerFailure || len(o.questions()) != asked {
				t.Errorf("asked again at once, it went upstream again and answered %s", dns.RcodeToString[r.Rcode])
			}
			for _, e := range events {
				if e.Kind == audit.KindDecision && e.Verdict == 0 {
					t.Errorf("a failure was logged as a denial: %+v", e)
				}
			}
		})
	}
}

func TestAnAliasLeftOpenIsFollowed(t *testing.T) {
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if strings.EqualFold(m.Question[0].Name, "end.test.") {
			_ = w.WriteMsg(answerWith(m, "203.0.113.9"))
			return
		}
		var r dns.Msg
		r.SetReply(m)
		rr, _ := dns.NewRR("a.test. 60 IN CNAME end.test.")
		r.Answer = []dns.RR{rr}
		_ = w.WriteMsg(&r)
	})
	f := start(t, allow("a.test"), nil, o)
	if got := texts(f.ask(t, "a.test", dns.TypeA).Answer); got != "a.test. 60 IN CNAME end.test.; end.test. 60 IN A 203.0.113.9" {
		t.Errorf("got %q", got)
	}
}

func TestAnUpstreamWithoutEDNSIsAskedWithout(t *testing.T) {
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if m.IsEdns0() != nil {
			var r dns.Msg
			_ = w.WriteMsg(r.SetRcode(m, dns.RcodeFormatError))
			return
		}
		_ = w.WriteMsg(answerWith(m, "203.0.113.1"))
	})
	f := start(t, allow("a.test"), nil, o)
	if r := f.ask(t, "a.test", dns.TypeA); len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
}

func TestFailover(t *testing.T) {
	dead := newOrigin(t, func(dns.ResponseWriter, *dns.Msg) {})
	good := newOrigin(t, nil, "a.test. 60 IN A 203.0.113.1", "b.test. 60 IN A 203.0.113.2", "c.test. 60 IN A 203.0.113.3")
	f := start(t, allow("a.test", "b.test", "c.test"), func(c *dnsfilter.Config) { c.AttemptTimeout = 50 * time.Millisecond }, dead, good)
	for _, name := range []string{"a.test", "b.test", "c.test"} {
		if r := f.ask(t, name, dns.TypeA); len(r.Answer) != 1 {
			t.Fatalf("%s: %v", name, r)
		}
	}
	if n := len(dead.questions()); n != 2 {
		t.Errorf("the dead upstream was asked %d times, want twice until it rests", n)
	}
	h := f.Upstreams()
	if len(h) != 2 || h[0].Healthy || h[0].LastError == "" || !h[1].Healthy || h[1].Questions != 3 {
		t.Errorf("health %+v", h)
	}
}

// detour dials one address whatever it is asked for: upstreams off loopback are
// played by one on it. It notes the source ports.
type detour struct {
	to    netip.AddrPort
	mu    sync.Mutex
	ports map[string]int
	dials int
}

func (d *detour) DialContext(ctx context.Context, network, _ string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, d.to.String())
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dials++
		d.ports[conn.LocalAddr().String()]++
	}
	return conn, err
}

// dialled is how many sockets there were. It locks: that an answer has come is no
// order that the race detector can see.
func (d *detour) dialled() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dials
}

func TestSourcePorts(t *testing.T) {
	t.Run("a loopback upstream is asked from a fresh one each time", func(t *testing.T) {
		o := newOrigin(t, nil, "x.test. 60 IN A 203.0.113.1")
		d := &detour{to: o.addr, ports: map[string]int{}}
		f := start(t, allow("*.test"), func(c *dnsfilter.Config) { c.Dial = d }, o)
		for _, name := range []string{"a.test", "b.test", "c.test"} {
			f.ask(t, name, dns.TypeA)
		}
		if n := d.dialled(); n != 3 {
			t.Errorf("%d sockets for 3 questions", n)
		}
	})
	t.Run("elsewhere a pool, drawn from at random", func(t *testing.T) {
		o := newOrigin(t, nil)
		d := &detour{to: o.addr, ports: map[string]int{}}
		f := start(t, `"public"`, func(c *dnsfilter.Config) {
			c.Dial, c.Upstreams = d, []dnsfilter.Upstream{{Addr: netip.MustParseAddrPort("192.0.2.53:53")}}
		})
		for i := range 600 {
			f.ask(t, "n"+strings.Repeat("x", i%50)+string(rune('a'+i/50))+".test", dns.TypeA)
		}
		if n := d.dialled(); n < 150 || n > 256 {
			t.Errorf("%d sockets for 600 questions, want most of 256", n)
		}
	})
}

// tlsOrigin is an upstream of DNS over TLS whose certificate names the given hosts.
func tlsOrigin(t *testing.T, accepted *atomic.Int32, records []string, hosts ...string) (netip.AddrPort, *x509.CertPool) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := &countingListener{inner, accepted}
	ln := tls.NewListener(counted, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: secret}}})
	started := make(chan struct{})
	s := &dns.Server{Listener: ln, Handler: zone(t, records...), NotifyStartedFunc: func() { close(started) }}
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = s.ShutdownContext(ctx)
		<-done
	})
	return inner.Addr().(*net.TCPAddr).AddrPort(), pool
}

type countingListener struct {
	net.Listener
	n *atomic.Int32
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return conn, err
}

func TestDNSOverTLS(t *testing.T) {
	records := []string{"a.test. 60 IN A 203.0.113.1", "b.test. 60 IN A 203.0.113.2"}
	var accepted atomic.Int32
	addr, roots := tlsOrigin(t, &accepted, records, "dns.test", "127.0.0.1")
	cases := map[string]struct {
		server string
		roots  *x509.CertPool
		works  bool
	}{
		"verified by name":              {"dns.test", roots, true},
		"verified by address":           {"", roots, true},
		"a name that it does not bear":  {"other.test", roots, false},
		"a certificate of nobody known": {"dns.test", x509.NewCertPool(), false},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			before := accepted.Load()
			f := start(t, allow("a.test", "b.test"), func(cfg *dnsfilter.Config) {
				cfg.Upstreams = []dnsfilter.Upstream{{Addr: addr, TLS: true, ServerName: c.server}}
				cfg.RootCAs = c.roots
			})
			for _, name := range []string{"a.test", "b.test"} {
				if r := f.ask(t, name, dns.TypeA); len(r.Answer) == 1 != c.works {
					t.Errorf("%s: %v", name, r)
				}
			}
			if n := accepted.Load() - before; c.works && n != 1 {
				t.Errorf("%d connections, want one reused", n)
			}
		})
	}
}

func TestAStreamThatEndedIsOpenedAnew(t *testing.T) {
	addr, roots := func() (netip.AddrPort, *x509.CertPool) {
		var n atomic.Int32
		return tlsOrigin(t, &n, []string{"a.test. 60 IN A 203.0.113.1", "b.test. 60 IN A 203.0.113.2"}, "dns.test")
	}()
	var mu sync.Mutex
	var conns []net.Conn
	dial := dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, conn)
		return conn, err
	})
	f := start(t, allow("a.test", "b.test"), func(c *dnsfilter.Config) {
		c.Upstreams = []dnsfilter.Upstream{{Addr: addr, TLS: true, ServerName: "dns.test"}}
		c.RootCAs, c.Dial = roots, dial
	})
	f.ask(t, "a.test", dns.TypeA)
	mu.Lock()
	_ = conns[0].(*net.TCPConn).CloseWrite()
	mu.Unlock()
	if r := f.ask(t, "b.test", dns.TypeA); len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

func (f dialFunc) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

func TestSingleLabelNamesGoToTheEngine(t *testing.T) {
	engine := newOrigin(t, nil, "db. 60 IN A 10.0.0.5")
	outside := newOrigin(t, nil, "pypi.test. 60 IN A 203.0.113.1", "db. 60 IN A 203.0.113.66")
	f := start(t, allow("db", "pypi.test"), func(c *dnsfilter.Config) {
		u := engine.upstream()
		c.Engine = &u
	}, outside)
	if got := texts(f.ask(t, "db", dns.TypeA).Answer); got != "db. 60 IN A 10.0.0.5" {
		t.Errorf("db: %q", got)
	}
	f.ask(t, "pypi.test", dns.TypeA)
	if len(engine.questions()) != 1 || len(outside.questions()) != 1 {
		t.Errorf("the engine was asked %v, outside %v", engine.questions(), outside.questions())
	}
}
