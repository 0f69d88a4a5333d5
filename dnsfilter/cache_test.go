package dnsfilter_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/policy"
)

func TestAnswersAreCachedAndAge(t *testing.T) {
	o := newOrigin(t, nil, "a.test. 60 IN A 203.0.113.1", "s.test. 1 IN A 203.0.113.2")
	f := start(t, allow("*.test"), nil, o)
	for range 3 {
		f.ask(t, "a.test", dns.TypeA)
		f.ask(t, "A.TEST", dns.TypeA)
		f.ask(t, "none.test", dns.TypeA)
	}
	if n := len(o.questions()); n != 2 {
		t.Errorf("upstream was asked %d times, want once for each name, the negative one too", n)
	}
	f.ask(t, "s.test", dns.TypeA)
	time.Sleep(1100 * time.Millisecond)
	if ttl := f.ask(t, "a.test", dns.TypeA).Answer[0].Header().Ttl; ttl != 59 && ttl != 58 {
		t.Errorf("TTL %d after a second, want it to have aged", ttl)
	}
	f.ask(t, "s.test", dns.TypeA)
	if n := len(o.questions()); n != 4 {
		t.Errorf("upstream was asked %d times, want an expired answer asked for again", n)
	}
}

func TestQuestionsInFlightAreShared(t *testing.T) {
	release := make(chan struct{})
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) {
		<-release
		_ = w.WriteMsg(answerWith(m, "203.0.113.1"))
	})
	f := start(t, allow("a.test"), nil, o)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if r := f.ask(t, "a.test", dns.TypeA); len(r.Answer) != 1 {
				t.Errorf("got %v", r)
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	close(release)
	all.Wait()
	if n := len(o.questions()); n != 1 {
		t.Errorf("upstream was asked %d times", n)
	}
}

func TestACachedAnswerDoesNotOutliveItsPolicy(t *testing.T) {
	o := newOrigin(t, nil, "a.test. 60 IN A 10.0.0.1", "a.test. 60 IN A 203.0.113.1")
	f := start(t, `"public"`, nil, o)
	if r := f.ask(t, "a.test", dns.TypeA); len(r.Answer) != 2 {
		t.Fatalf("public: %v", r)
	}
	f.policy.Store(compile(t, allow("a.test"))) // and no Flush: judged anew all the same
	if got := texts(f.ask(t, "a.test", dns.TypeA).Answer); got != "a.test. 60 IN A 203.0.113.1" {
		t.Errorf("allowlist: %q", got)
	}
	f.policy.Store(compile(t, allow("b.test")))
	if r := f.ask(t, "a.test", dns.TypeA); r.Rcode != dns.RcodeNameError {
		t.Errorf("taken away: %v", r)
	}
	f.policy.Store(compile(t, `"public"`))
	f.Flush()
	f.ask(t, "a.test", dns.TypeA)
	if n := len(o.questions()); n != 2 {
		t.Errorf("upstream was asked %d times, want once more after Flush", n)
	}
}

func TestASwapEndsQuestionsInFlight(t *testing.T) {
	asked := make(chan struct{}, 10)
	o := newOrigin(t, func(dns.ResponseWriter, *dns.Msg) { asked <- struct{}{} })
	f := start(t, allow("a.test"), func(c *dnsfilter.Config) { c.AttemptTimeout = 300 * time.Millisecond }, o)
	answered := make(chan *dns.Msg)
	go func() { answered <- f.ask(t, "a.test", dns.TypeA) }()
	<-asked
	f.policy.Store(compile(t, `"no-network"`))
	f.Flush()
	before := len(o.questions())
	if r := <-answered; r.Rcode != dns.RcodeNameError || f.log.last(t).Reason != policy.ReasonMode {
		t.Errorf("answered %v, logged %+v", r, f.log.last(t))
	}
	time.Sleep(400 * time.Millisecond)
	if n := len(o.questions()); n != before {
		t.Errorf("%d questions were sent after the swap", n-before)
	}
}

func TestSwapsUnderLoad(t *testing.T) {
	var allowed atomic.Bool
	var leaks atomic.Int32
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) {
		_ = w.WriteMsg(answerWith(m, "203.0.113.1"))
	})
	open, shut := compile(t, `"public"`), compile(t, `"no-network"`)
	dial := dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &watched{conn, func() {
			if !allowed.Load() {
				leaks.Add(1)
			}
		}}, err
	})
	f := start(t, `"no-network"`, func(c *dnsfilter.Config) { c.Dial = dial }, o)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f.ask(t, fmt.Sprintf("n%d-%d.test", c, i), dns.TypeA)
				}
			}
		})
	}
	for range 50 {
		allowed.Store(true)
		f.policy.Store(open)
		f.Flush()
		time.Sleep(2 * time.Millisecond)
		f.policy.Store(shut)
		f.Flush()
		allowed.Store(false)
		time.Sleep(time.Millisecond)
	}
	close(stop)
	clients.Wait()
	if leaks.Load() > 0 || len(o.questions()) == 0 {
		t.Errorf("%d of %d questions were sent after the swap that forbade them", leaks.Load(), len(o.questions()))
	}
}

// watched calls before each Write.
type watched struct {
	net.Conn
	before func()
}

func (w *watched) Write(b []byte) (int, error) {
	w.before()
	return w.Conn.Write(b)
}

func TestTheBudgetOfAWildcard(t *testing.T) {
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) { _ = w.WriteMsg(answerWith(m, "203.0.113.1")) })
	limits := map[string]dnsfilter.Budget{
		"unique names": {Names: 5},
		"bytes":        {Bytes: 5 * len("n0.zone.test")},
	}
	for what, limit := range limits {
		t.Run(what, func(t *testing.T) {
			f := start(t, allow("*.zone.test", "*.free.test", "exact.zone.test"), func(c *dnsfilter.Config) { c.Budget = limit }, o)
			before := len(o.questions())
			for i := range 5 {
				if r := f.ask(t, fmt.Sprintf("n%d.zone.test", i), dns.TypeA); len(r.Answer) != 1 {
					t.Fatalf("name %d: %v", i, r)
				}
			}
			r := f.ask(t, "n5.zone.test", dns.TypeA)
			if e := f.log.last(t); r.Rcode != dns.RcodeNameError || e.Reason != policy.ReasonLimit || e.Rule != "*.zone.test" {
				t.Errorf("over budget: %v, logged %+v", r, e)
			}
			if _, err := f.Lookup(t.Context(), "n6.zone.test", dnsfilter.FamilyIPv4); !deniedFor(err, policy.ReasonLimit) {
				t.Errorf("Lookup over budget: %v", err)
			}
			if n := len(o.questions()) - before; n != 5 {
				t.Errorf("upstream was asked %d times", n)
			}
			for _, name := range []string{"n1.zone.test", "exact.zone.test"} {
				if r := f.ask(t, name, dns.TypeA); len(r.Answer) != 1 {
					t.Errorf("%s: %v", name, r)
				}
			}
		})
	}
}

func deniedFor(err error, reason policy.Reason) bool {
	var denied *dnsfilter.DeniedError
	return errors.As(err, &denied) && denied.Decision.Reason == reason
}

func TestAttributionAndTheKernelComeBeforeTheAnswer(t *testing.T) {
	o := newOrigin(t, nil,
		"a.test. 60 IN A 203.0.113.1", "a.test. 60 IN A 10.0.0.1",
		"a.test. 60 IN HTTPS 1 . ipv4hint=203.0.113.9", "quiet.test. 60 IN TXT x")
	type call struct {
		name  string
		addrs []netip.Addr
		ttl   time.Duration
	}
	var mu sync.Mutex
	var calls []call
	var fails error
	f := start(t, allow("a.test", "quiet.test"), func(c *dnsfilter.Config) {
		c.Kernel = func(_ context.Context, name string, addrs []netip.Addr, ttl time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, call{name, addrs, ttl})
			return fails
		}
	}, o)
	for range 3 {
		f.ask(t, "A.test", dns.TypeA)
	}
	f.ask(t, "quiet.test", dns.TypeTXT)
	told := func() []call {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(calls)
	}
	if calls := told(); len(calls) != 1 || calls[0].name != "a.test" || !slices.Equal(calls[0].addrs, []netip.Addr{mustAddr("203.0.113.1")}) || calls[0].ttl != time.Minute {
		t.Errorf("the kernel was told %+v", calls)
	}
	if got := f.names.Names(mustAddr("203.0.113.1")); !slices.Equal(got, []string{"a.test"}) {
		t.Errorf("attributed to %v", got)
	}
	if got := f.names.Names(mustAddr("10.0.0.1")); len(got) != 0 {
		t.Errorf("an address that was kept back is attributed to %v", got)
	}
	f.ask(t, "a.test", dns.TypeHTTPS)
	if got := f.names.Names(mustAddr("203.0.113.9")); !slices.Equal(got, []string{"a.test"}) {
		t.Errorf("a hint is attributed to %v", got)
	}
	f.policy.Store(compile(t, allow("a.test")))
	f.ask(t, "a.test", dns.TypeA)
	if n := len(told()); n != 3 {
		t.Errorf("after a swap the kernel was told %d times in all, want a third", n)
	}
	f.Flush()
	mu.Lock()
	fails = errors.New("no memory")
	mu.Unlock()
	if r := f.ask(t, "a.test", dns.TypeA); r.Rcode != dns.RcodeServerFailure || len(r.Answer) != 0 {
		t.Errorf("though the kernel refused, the answer was %v", r)
	}
}

func TestAPanicIsOneQuestionsFailure(t *testing.T) {
	o := newOrigin(t, nil, "a.test. 60 IN A 203.0.113.1")
	var told atomic.Bool
	f := start(t, allow("a.test"), func(c *dnsfilter.Config) {
		c.Kernel = func(context.Context, string, []netip.Addr, time.Duration) error {
			if !told.Swap(true) {
				panic("kernel lost")
			}
			return nil
		}
	}, o)
	if r := f.ask(t, "a.test", dns.TypeA); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("got %v", r)
	}
	events := f.log.all()
	if e := events[len(events)-1]; e.Kind != audit.KindError || !strings.Contains(e.Message, "kernel lost") {
		t.Errorf("logged %+v", e)
	}
	if r := f.ask(t, "a.test", dns.TypeA); len(r.Answer) != 1 {
		t.Errorf("after it: %v", r)
	}
}

func TestPins(t *testing.T) {
	o := newOrigin(t, nil, "pin.test. 60 IN A 203.0.113.66", "pin.test. 60 IN TXT outside")
	f := start(t, allow("pin.test"), func(c *dnsfilter.Config) {
		c.Pins = map[string][]netip.Addr{
			"Pin.test":      {mustAddr("127.0.0.1"), mustAddr("2001:db8::1")},
			"unlisted.test": {mustAddr("127.0.0.1")},
		}
	}, o)
	for name, want := range map[uint16]string{
		dns.TypeA:    "pin.test. 60 IN A 127.0.0.1",
		dns.TypeAAAA: "pin.test. 60 IN AAAA 2001:db8::1",
		dns.TypeTXT:  "",
	} {
		if r := f.ask(t, "pin.test", name); texts(r.Answer) != want || r.Rcode != dns.RcodeSuccess {
			t.Errorf("got %q, want %q", texts(r.Answer), want)
		}
	}
	if r := f.ask(t, "unlisted.test", dns.TypeA); r.Rcode != dns.RcodeNameError {
		t.Errorf("a pin that is not allowed: %v", r)
	}
	if !f.Pinned("pin.test") || f.Pinned("other.test") {
		t.Error("Pinned is wrong")
	}
	if n := len(o.questions()); n != 0 {
		t.Errorf("upstream was asked %d times for pinned names", n)
	}
}

func TestOneClientCannotTakeEveryPlace(t *testing.T) {
	o := newOrigin(t, func(dns.ResponseWriter, *dns.Msg) {})
	f := start(t, allow("*.test"), func(c *dnsfilter.Config) {
		c.ClientQueries, c.QueryTimeout, c.AttemptTimeout = 3, 400*time.Millisecond, 400*time.Millisecond
	}, o)
	var refused atomic.Int32
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			if r := f.ask(t, fmt.Sprintf("n%d.test", i), dns.TypeA); r.Rcode == dns.RcodeRefused && strings.Contains(ede(r).ExtraText, "limit") {
				refused.Add(1)
			}
		})
	}
	all.Wait()
	if refused.Load() != 3 {
		t.Errorf("%d of 6 questions were refused, want 3", refused.Load())
	}
}

func TestLookup(t *testing.T) {
	o := newOrigin(t, nil,
		"both.test. 60 IN A 203.0.113.1", "both.test. 60 IN AAAA 2001:db8::1",
		"four.test. 60 IN A 203.0.113.2", "rebind.test. 60 IN A 127.0.0.1",
		"bad.test. 60 IN CNAME denied.test.", "denied.test. 60 IN A 203.0.113.3", "db.corp.test. 60 IN A 203.0.113.4")
	f := start(t, `{"network_mode":"allowlist","denied_hosts":["denied.test"],
		"allowed_hosts":["both.test","four.test","rebind.test","bad.test","none.test","db","db.corp.test"]}`,
		func(c *dnsfilter.Config) { c.Search = []string{"corp.test"} }, o)
	cases := map[string]struct {
		name   string
		family dnsfilter.Family
		want   string
		err    func(error) bool
	}{
		"both families":                      {"both.test", dnsfilter.FamilyBoth, "2001:db8::1 203.0.113.1", nil},
		"one family":                         {"both.test", dnsfilter.FamilyIPv4, "203.0.113.1", nil},
		"a name that has one only":           {"four.test", dnsfilter.FamilyBoth, "203.0.113.2", nil},
		"special addresses are the caller's": {"rebind.test", dnsfilter.FamilyIPv4, "127.0.0.1", nil},
		"a name of one label is searched":    {"db", dnsfilter.FamilyIPv4, "203.0.113.4", nil},
		"an address is itself":               {"203.0.113.7", dnsfilter.FamilyBoth, "203.0.113.7", nil},
		"an alias to a denied name":          {"bad.test", dnsfilter.FamilyIPv4, "", func(e error) bool { return deniedFor(e, policy.ReasonDenied) }},
		"an unlisted name":                   {"other.test", dnsfilter.FamilyBoth, "", func(e error) bool { return deniedFor(e, policy.ReasonUnlisted) }},
		"a name that does not exist":         {"none.test", dnsfilter.FamilyBoth, "", func(e error) bool { return errors.Is(e, dnsfilter.ErrUnresolvable) }},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			for range 2 {
				addrs, err := f.Lookup(t.Context(), c.name, c.family)
				got := strings.Trim(strings.ReplaceAll(fmt.Sprint(addrs), ",", ""), "[]")
				if got != c.want || (err != nil) != (c.err != nil) || c.err != nil && !c.err(err) {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
	if got := len(f.log.all()); got != 0 {
		t.Errorf("Lookup logged %d events", got)
	}
}

func TestLookupEndsWithItsContext(t *testing.T) {
	f := start(t, allow("a.test"), nil, newOrigin(t, func(dns.ResponseWriter, *dns.Msg) {}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := f.Lookup(ctx, "a.test", dnsfilter.FamilyBoth); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) { _ = w.WriteMsg(answerWith(m, "203.0.113.1")) })
	f := start(t, `"public"`, nil, o)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 12_000 {
		if _, err := f.Lookup(t.Context(), fmt.Sprintf("a-name-of-ordinary-length-%d.test", i), dnsfilter.FamilyIPv4); err != nil {
			t.Fatal(err)
		}
	}
	o.mu.Lock()
	o.seen = nil
	o.mu.Unlock()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int(after.HeapAlloc) - int(before.HeapAlloc); grown > 20<<20 {
		t.Errorf("a full cache takes %d bytes, want at most 20 MB", grown)
	} else {
		t.Logf("a full cache takes %d bytes", grown)
	}
}

func TestReadResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# comment\nnameserver 192.0.2.53\nnameserver 2001:db8::1 ; trailing\nnameserver nonsense\ndomain old.test\n" +
		"search Corp.Test. lab.test\noptions ndots:2\nnameserver 192.0.2.54\nnameserver 192.0.2.55\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	upstreams, search, err := dnsfilter.ReadResolvConf(path)
	if got := fmt.Sprint(upstreams, search, err); got != "[192.0.2.53:53 [2001:db8::1]:53 192.0.2.54:53] [corp.test lab.test] <nil>" {
		t.Error(got)
	}
	if _, _, err := dnsfilter.ReadResolvConf(path + ".not"); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestParseUpstream(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.53":                    "192.0.2.53:53",
		"192.0.2.53:5353":               "192.0.2.53:5353",
		"2001:db8::1":                   "[2001:db8::1]:53",
		"[2001:db8::1]":                 "[2001:db8::1]:53",
		"[2001:db8::1]:5353":            "[2001:db8::1]:5353",
		"::ffff:192.0.2.53":             "192.0.2.53:53",
		"tls://192.0.2.53":              "tls://192.0.2.53:853",
		"tls://dns.test@192.0.2.53":     "tls://dns.test@192.0.2.53:853",
		"tls://dns.test@192.0.2.53:853": "tls://dns.test@192.0.2.53:853",
		"https://192.0.2.53":            "", "dns.test": "", "tls://@192.0.2.53": "", "192.0.2.53:0": "", "": "",
	} {
		u, err := dnsfilter.ParseUpstream(text)
		if err != nil && want == "" {
			continue
		}
		if err != nil || u.String() != want {
			t.Errorf("%q: %q, %v", text, u, err)
		}
	}
}

func TestNewReportsEverythingWrong(t *testing.T) {
	_, err := dnsfilter.New(dnsfilter.Config{
		Upstreams: []dnsfilter.Upstream{{}}, Pins: map[string][]netip.Addr{"": nil}, Conns: -1,
	})
	for _, want := range []string{"policy", "log", "attribution", "upstream", "pinned", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %q", err, want)
		}
	}
}
