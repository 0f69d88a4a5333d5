package dnsfilter_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder keeps every event, unfolded.
type recorder struct {
	mu     sync.Mutex
	events []audit.Event
}

func (r *recorder) Record(e audit.Event) audit.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.ID = uint64(len(r.events) + 1)
	if e.DecisionID == "" && e.Kind == audit.KindDecision {
		e.DecisionID = fmt.Sprintf("test-%d", e.ID)
	}
	r.events = append(r.events, e)
	return e
}

func (r *recorder) all() []audit.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]audit.Event(nil), r.events...)
}

// last is the latest decision.
func (r *recorder) last(t *testing.T) audit.Event {
	t.Helper()
	events := r.all()
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].Kind == audit.KindDecision {
			return events[i]
		}
	}
	t.Fatal("no decision was logged")
	return audit.Event{}
}

func compile(t testing.TB, text string, floor ...string) *policy.Compiled {
	t.Helper()
	doc, _, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatalf("policy %s: %v", text, err)
	}
	options := policy.Options{Generation: 7}
	for _, f := range floor {
		target, err := policy.ParseTarget(f)
		if err != nil {
			t.Fatal(err)
		}
		options.Floor = append(options.Floor, target)
	}
	return policy.Compile(doc, options)
}

// allow is an allowlist policy document.
func allow(targets ...string) string {
	list, err := json.Marshal(targets)
	if err != nil {
		panic(err)
	}
	return `{"network_mode":"allowlist","allowed_hosts":` + string(list) + `}`
}

// origin is a real upstream: a DNS server on loopback, UDP and TCP on one port.
type origin struct {
	addr netip.AddrPort
	mu   sync.Mutex
	seen []dns.Question
}

func (o *origin) upstream() dnsfilter.Upstream { return dnsfilter.Upstream{Addr: o.addr} }

func (o *origin) questions() []dns.Question {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]dns.Question(nil), o.seen...)
}

// newOrigin serves handle, or the zone of records where handle is nil.
func newOrigin(t testing.TB, handle dns.HandlerFunc, records ...string) *origin {
	t.Helper()
	if handle == nil {
		handle = zone(t, records...)
	}
	o := &origin{}
	counted := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		o.mu.Lock()
		o.seen = append(o.seen, m.Question...)
		o.mu.Unlock()
		handle(w, m)
	})
	pc, ln := listenBoth(t, "127.0.0.1")
	o.addr = pc.LocalAddr().(*net.UDPAddr).AddrPort()
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: counted}, {Listener: ln, Handler: counted}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		done := make(chan error, 1)
		go func() { done <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_ = s.ShutdownContext(ctx)
			<-done
		})
	}
	return o
}

// listenBoth binds UDP and TCP on the same port.
func listenBoth(t testing.TB, host string) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		pc, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", pc.LocalAddr().String())
		if err == nil {
			return pc, ln
		}
		_ = pc.Close()
	}
	t.Fatal("no port free for both UDP and TCP")
	return nil, nil
}

// zone answers from records as a resolver would: the whole CNAME chain, NODATA
// with the SOA, NXDOMAIN.
func zone(t testing.TB, records ...string) dns.HandlerFunc {
	t.Helper()
	byName := map[string][]dns.RR{}
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatalf("record %q: %v", text, err)
		}
		name := strings.ToLower(rr.Header().Name)
		byName[name] = append(byName[name], rr)
	}
	soa, err := dns.NewRR("test. 60 IN SOA ns.test. h.test. 1 3600 600 86400 30")
	if err != nil {
		t.Fatal(err)
	}
	return func(w dns.ResponseWriter, m *dns.Msg) {
		var r dns.Msg
		r.SetReply(m)
		r.Compress = true
		name := strings.ToLower(m.Question[0].Name)
		if len(byName[name]) == 0 {
			r.Rcode = dns.RcodeNameError
		}
		for range 20 {
			next := ""
			for _, rr := range byName[name] {
				cname, ok := rr.(*dns.CNAME)
				if rr.Header().Rrtype == m.Question[0].Qtype {
					r.Answer = append(r.Answer, dns.Copy(rr))
				} else if ok {
					r.Answer = append(r.Answer, dns.Copy(rr))
					next = strings.ToLower(cname.Target)
				}
			}
			if next == "" {
				break
			}
			name = next
		}
		if len(r.Answer) == 0 {
			r.Ns = []dns.RR{dns.Copy(soa)}
		}
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			size := dns.MinMsgSize
			if opt := m.IsEdns0(); opt != nil {
				size = int(opt.UDPSize())
			}
			r.Truncate(size)
		}
		_ = w.WriteMsg(&r)
	}
}

// filter is a running Server with its parts.
type filter struct {
	*dnsfilter.Server
	policy   atomic.Pointer[policy.Compiled]
	log      *recorder
	names    *attribution.Table
	udp, tcp string
	udp6     string
}

// start runs a Server under the policy document; change edits its Config first.
func start(t testing.TB, document string, change func(*dnsfilter.Config), upstreams ...*origin) *filter {
	t.Helper()
	f := &filter{log: &recorder{}, names: attribution.New(time.Hour, nil)}
	if document != "" {
		f.policy.Store(compile(t, document))
	}
	c := dnsfilter.Config{Policy: &f.policy, Log: f.log, Names: f.names}
	for _, o := range upstreams {
		c.Upstreams = append(c.Upstreams, o.upstream())
	}
	if change != nil {
		change(&c)
	}
	server, err := dnsfilter.New(c)
	if err != nil {
		t.Fatal(err)
	}
	f.Server = server
	pc, ln := listenBoth(t, "127.0.0.1")
	udp, tcp := []net.PacketConn{pc}, []net.Listener{ln}
	f.udp, f.tcp = pc.LocalAddr().String(), ln.Addr().String()
	if pc6, err := net.ListenPacket("udp", "[::1]:0"); err == nil {
		udp = append(udp, pc6)
		f.udp6 = pc6.LocalAddr().String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, udp, tcp) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

// ask puts a question with EDNS over UDP.
func (f *filter) ask(t testing.TB, name string, qtype uint16) *dns.Msg {
	t.Helper()
	var m dns.Msg
	m.SetQuestion(dns.Fqdn(name), qtype)
	m.SetEdns0(1232, false)
	return f.exchange(t, "udp", f.udp, &m)
}

func (f *filter) exchange(t testing.TB, network, addr string, m *dns.Msg) *dns.Msg {
	t.Helper()
	client := dns.Client{Net: network, Timeout: 8 * time.Second, UDPSize: 4096}
	r, _, err := client.Exchange(m, addr)
	if err != nil {
		t.Fatalf("%s %s: %v", m.Question[0].Name, dns.TypeToString[m.Question[0].Qtype], err)
	}
	return r
}

// texts are the records of a section in zone file form, single-spaced.
func texts(rrs []dns.RR) string {
	out := make([]string, 0, len(rrs))
	for _, rr := range rrs {
		out = append(out, strings.Join(strings.Fields(rr.String()), " "))
	}
	return strings.Join(out, "; ")
}

// ede is the Extended DNS Error of an answer, or nil.
func ede(m *dns.Msg) *dns.EDNS0_EDE {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return e
			}
		}
	}
	return nil
}
