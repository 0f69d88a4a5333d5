package dnsfilter_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/policy"
)

func TestQuestionsAreJudgedByThePolicyInForce(t *testing.T) {
	o := newOrigin(t, nil,
		"pypi.test. 300 IN A 203.0.113.10",
		"pypi.test. 300 IN TXT hello",
		"a.wild.test. 300 IN A 203.0.113.11",
		"deep.a.wild.test. 300 IN A 203.0.113.12",
		"_https._tcp.a.wild.test. 300 IN SRV 0 0 443 a.wild.test.",
		"other.test. 300 IN A 203.0.113.13",
		"www.tree.test. 300 IN A 203.0.113.14",
	)
	list := allow("pypi.test", "*.wild.test", "www.tree.test", "*.below.test:443")
	cases := map[string]struct {
		policy, name string
		qtype        uint16
		rcode        int
		verdict      policy.Verdict
		reason       policy.Reason
		answer       string
	}{
		"an allowed name resolves":                          {list, "pypi.test", dns.TypeA, dns.RcodeSuccess, policy.Allow, policy.ReasonRule, "pypi.test. 300 IN A 203.0.113.10"},
		"an exact name may ask any ordinary type":           {list, "pypi.test", dns.TypeTXT, dns.RcodeSuccess, policy.Allow, policy.ReasonRule, `pypi.test. 300 IN TXT "hello"`},
		"an allowed name without such records is NODATA":    {list, "pypi.test", dns.TypeAAAA, dns.RcodeSuccess, policy.Allow, policy.ReasonRule, ""},
		"an allowed name that does not exist is NXDOMAIN":   {list, "no.wild.test", dns.TypeA, dns.RcodeNameError, policy.Allow, policy.ReasonRule, ""},
		"a wildcard covers names below it":                  {list, "a.wild.test", dns.TypeA, dns.RcodeSuccess, policy.Allow, policy.ReasonRule, "a.wild.test. 300 IN A 203.0.113.11"},
		"a wildcard covers any depth":                       {list, "deep.a.wild.test", dns.TypeA, dns.RcodeSuccess, policy.Allow, policy.ReasonRule, "deep.a.wild.test. 300 IN A 203.0.113.12"},
		"a wildcard allows SRV":                             {list, "_https._tcp.a.wild.test", dns.TypeSRV, dns.RcodeSuccess, policy.Allow, policy.ReasonRule, "_https._tcp.a.wild.test. 300 IN SRV 0 0 443 a.wild.test."},
		"TXT under a wildcard is a tunnel":                  {list, "a.wild.test", dns.TypeTXT, dns.RcodeSuccess, policy.Deny, policy.ReasonQueryType, ""},
		"ANY is refused":                                    {list, "pypi.test", dns.TypeANY, dns.RcodeSuccess, policy.Deny, policy.ReasonQueryType, ""},
		"NULL is refused":                                   {list, "pypi.test", dns.TypeNULL, dns.RcodeSuccess, policy.Deny, policy.ReasonQueryType, ""},
		"AXFR is refused":                                   {list, "pypi.test", dns.TypeAXFR, dns.RcodeSuccess, policy.Deny, policy.ReasonQueryType, ""},
		"an unlisted name does not exist":                   {list, "other.test", dns.TypeA, dns.RcodeNameError, policy.Deny, policy.ReasonUnlisted, ""},
		"a wildcard's base is NODATA, names lie below it":   {list, "wild.test", dns.TypeA, dns.RcodeSuccess, policy.Deny, policy.ReasonUnlisted, ""},
		"a parent of an exact name is NODATA too":           {list, "tree.test", dns.TypeA, dns.RcodeSuccess, policy.Deny, policy.ReasonUnlisted, ""},
		"a parent of a wildcard with a port is NODATA":      {list, "below.test", dns.TypeA, dns.RcodeSuccess, policy.Deny, policy.ReasonUnlisted, ""},
		"a suffix that is no label boundary is unlisted":    {list, "evilpypi.test", dns.TypeA, dns.RcodeNameError, policy.Deny, policy.ReasonUnlisted, ""},
		"an address as a name never resolves":               {list, "203.0.113.10", dns.TypeA, dns.RcodeNameError, policy.Deny, policy.ReasonUnlisted, ""},
		"a number as a name is malformed":                   {list, "2130706433", dns.TypeA, dns.RcodeNameError, policy.Deny, policy.ReasonMalformed, ""},
		"no-network asks nothing":                           {`"no-network"`, "pypi.test", dns.TypeA, dns.RcodeNameError, policy.Deny, policy.ReasonMode, ""},
		"public asks everything":                            {`"public"`, "other.test", dns.TypeA, dns.RcodeSuccess, policy.Allow, policy.ReasonMode, "other.test. 300 IN A 203.0.113.13"},
		"public still refuses zone transfers":               {`"public"`, "other.test", dns.TypeAXFR, dns.RcodeSuccess, policy.Deny, policy.ReasonQueryType, ""},
		"a denylist holds its names":                        {`{"network_mode":"denylist","denied_hosts":["other.test"]}`, "other.test", dns.TypeA, dns.RcodeNameError, policy.Deny, policy.ReasonDenied, ""},
		"a denylist leaves the others":                      {`{"network_mode":"denylist","denied_hosts":["other.test"]}`, "pypi.test", dns.TypeA, dns.RcodeSuccess, policy.Allow, policy.ReasonMode, "pypi.test. 300 IN A 203.0.113.10"},
		"a denied name with a port is still needed":         {`{"network_mode":"denylist","denied_hosts":["other.test:443"]}`, "other.test", dns.TypeA, dns.RcodeSuccess, policy.Allow, policy.ReasonMode, "other.test. 300 IN A 203.0.113.13"},
		"a range of the whole family opens names for it":    {allow("0.0.0.0/0"), "other.test", dns.TypeA, dns.RcodeSuccess, policy.Allow, policy.ReasonRule, "other.test. 300 IN A 203.0.113.13"},
		"the root itself may be asked about":                {`"public"`, ".", dns.TypeNS, dns.RcodeNameError, policy.Allow, policy.ReasonMode, ""},
		"the root is unlisted under an allowlist":           {list, ".", dns.TypeNS, dns.RcodeSuccess, policy.Deny, policy.ReasonUnlisted, ""},
		"without a policy nothing resolves":                 {"", "pypi.test", dns.TypeA, dns.RcodeNameError, policy.Deny, policy.ReasonUnprotected, ""},
		"letter case does not matter, the client's is kept": {list, "PyPI.test", dns.TypeA, dns.RcodeSuccess, policy.Allow, policy.ReasonRule, "PyPI.test. 300 IN A 203.0.113.10"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := len(o.questions())
			f := start(t, c.policy, nil, o)
			for _, try := range []string{"uncached", "cached"} {
				r := f.ask(t, c.name, c.qtype)
				if r.Rcode != c.rcode || texts(r.Answer) != c.answer {
					t.Fatalf("%s: got %s %q, want %s %q", try, dns.RcodeToString[r.Rcode], texts(r.Answer), dns.RcodeToString[c.rcode], c.answer)
				}
				e := f.log.last(t)
				if e.Verdict != c.verdict || e.Reason != c.reason || e.Channel != audit.ChannelDNS || e.QType != dns.TypeToString[c.qtype] {
					t.Fatalf("%s: logged %s %s %s %s", try, e.Verdict, e.Reason, e.Channel, e.QType)
				}
				if c.verdict == policy.Allow {
					continue
				}
				if len(o.questions()) != before {
					t.Fatal("a denied question was sent upstream")
				}
				ext := ede(r)
				if ext == nil || ext.InfoCode != dns.ExtendedErrorCodeBlocked ||
					!strings.Contains(ext.ExtraText, string(c.reason)) || !strings.Contains(ext.ExtraText, e.DecisionID) {
					t.Fatalf("%s: EDE %v does not name %s and %s", try, ext, c.reason, e.DecisionID)
				}
				if len(r.Ns) != 1 || r.Ns[0].(*dns.SOA).Minttl != 1 {
					t.Fatalf("%s: authority %q, want a SOA of one second", try, texts(r.Ns))
				}
			}
		})
	}
}

func TestAnswersAreCheckedBeforeTheyAreGiven(t *testing.T) {
	o := newOrigin(t, nil,
		"mixed.test. 300 IN A 203.0.113.1", "mixed.test. 300 IN A 10.0.0.1", "mixed.test. 300 IN A 169.254.169.254",
		"rebind.test. 300 IN A 127.0.0.1",
		"nat64.test. 300 IN AAAA 64:ff9b::a00:1",
		"meta.test. 300 IN AAAA fd00:ec2::254",
		"alias.test. 300 IN CNAME cdn.elsewhere.test.", "cdn.elsewhere.test. 100 IN A 203.0.113.2",
		"bad.test. 300 IN CNAME denied.test.", "denied.test. 300 IN A 203.0.113.3",
		"bind.test. 300 IN HTTPS 1 . alpn=h2 ipv4hint=203.0.113.4,10.0.0.1 ipv6hint=::1 ech=AEP+DQA/",
		"both.test. 300 IN A 203.0.113.5", "both.test. 300 IN AAAA 2001:db8::5",
		"long.test. 90000 IN A 203.0.113.6", "short.test. 0 IN A 203.0.113.6",
		"own.test. 300 IN A 198.18.0.1",
		"db. 300 IN A 10.1.2.3",
	)
	carved := `{"network_mode":"allowlist","allowed_hosts":["bad.test","deny.test"],"denied_hosts":["denied.test"]}`
	cases := map[string]struct {
		policy, name string
		qtype        uint16
		answer       string
		verdict      policy.Verdict
		reason       policy.Reason
		rcode        int
	}{
		"special addresses among others are dropped": {allow("mixed.test"), "mixed.test", dns.TypeA, "mixed.test. 300 IN A 203.0.113.1", policy.Allow, policy.ReasonRule, 0},
		"a name that is loopback is denied":          {allow("rebind.test"), "rebind.test", dns.TypeA, "", policy.Deny, policy.ReasonSpecialAddress, 0},
		"an address inside NAT64 is looked through":  {allow("nat64.test"), "nat64.test", dns.TypeAAAA, "", policy.Deny, policy.ReasonSpecialAddress, 0},
		"metadata over IPv6":                         {allow("meta.test"), "meta.test", dns.TypeAAAA, "", policy.Deny, policy.ReasonSpecialAddress, 0},
		"an address target allows the special one":   {allow("rebind.test", "10.0.0.1", "mixed.test"), "mixed.test", dns.TypeA, "mixed.test. 300 IN A 203.0.113.1; mixed.test. 300 IN A 10.0.0.1", policy.Allow, policy.ReasonRule, 0},
		"public does not judge addresses":            {`"public"`, "rebind.test", dns.TypeA, "rebind.test. 300 IN A 127.0.0.1", policy.Allow, policy.ReasonMode, 0},
		"an unlisted alias is followed":              {allow("alias.test"), "alias.test", dns.TypeA, "alias.test. 300 IN CNAME cdn.elsewhere.test.; cdn.elsewhere.test. 100 IN A 203.0.113.2", policy.Allow, policy.ReasonRule, 0},
		"an alias to a denied name is denied":        {carved, "bad.test", dns.TypeA, "", policy.Deny, policy.ReasonDenied, dns.RcodeNameError},
		"ech goes and hints are checked":             {allow("bind.test"), "bind.test", dns.TypeHTTPS, `bind.test. 300 IN HTTPS 1 . alpn="h2" ipv4hint="203.0.113.4"`, policy.Allow, policy.ReasonRule, 0},
		"a whole family answers itself only":         {allow("0.0.0.0/0"), "both.test", dns.TypeA, "both.test. 300 IN A 203.0.113.5", policy.Allow, policy.ReasonRule, 0},
		"a long TTL is clamped to an hour":           {allow("long.test"), "long.test", dns.TypeA, "long.test. 3600 IN A 203.0.113.6", policy.Allow, policy.ReasonRule, 0},
		"a TTL of nothing is a second":               {allow("short.test"), "short.test", dns.TypeA, "short.test. 1 IN A 203.0.113.6", policy.Allow, policy.ReasonRule, 0},
		"the sandbox's own address is special":       {allow("own.test", "198.18.0.0/15:80"), "own.test", dns.TypeA, "", policy.Deny, policy.ReasonSpecialAddress, 0},
		"a name of one label may be private":         {allow("db"), "db", dns.TypeA, "db. 300 IN A 10.1.2.3", policy.Allow, policy.ReasonRule, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := start(t, c.policy, func(c *dnsfilter.Config) {
				c.Local = func(a netip.Addr) bool { return a == netip.MustParseAddr("198.18.0.1") }
			}, o)
			for range 2 {
				r := f.ask(t, c.name, c.qtype)
				e := f.log.last(t)
				if texts(r.Answer) != c.answer || r.Rcode != c.rcode || e.Verdict != c.verdict || e.Reason != c.reason {
					t.Fatalf("got %s %q logged %s %s\nwant %s %q logged %s %s", dns.RcodeToString[r.Rcode], texts(r.Answer), e.Verdict, e.Reason,
						dns.RcodeToString[c.rcode], c.answer, c.verdict, c.reason)
				}
			}
		})
	}
}

func TestAFamilyThatIsNotOpenIsNotAnswered(t *testing.T) {
	o := newOrigin(t, nil, "both.test. 300 IN A 203.0.113.5", "both.test. 300 IN AAAA 2001:db8::5")
	f := start(t, allow("0.0.0.0/0"), nil, o)
	if r := f.ask(t, "both.test", dns.TypeAAAA); len(r.Answer) != 0 || r.Rcode != dns.RcodeSuccess {
		t.Fatalf("got %s %q, want NODATA", dns.RcodeToString[r.Rcode], texts(r.Answer))
	}
}

func TestOnlyRecordsOfTheQuestionAreKept(t *testing.T) {
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) {
		var r dns.Msg
		r.SetReply(m)
		for _, text := range []string{
			m.Question[0].Name + " 60 IN A 203.0.113.1",
			"stray.test. 60 IN A 203.0.113.2",
			m.Question[0].Name + " 60 IN TXT stray",
			m.Question[0].Name + " 60 CH A 203.0.113.3",
		} {
			rr, err := dns.NewRR(text)
			if err == nil {
				r.Answer = append(r.Answer, rr)
			}
		}
		ns, _ := dns.NewRR("test. 60 IN NS ns.test.")
		glue, _ := dns.NewRR("ns.test. 60 IN A 203.0.113.53")
		r.Ns, r.Extra = []dns.RR{ns}, []dns.RR{glue}
		_ = w.WriteMsg(&r)
	})
	f := start(t, allow("a.test"), nil, o)
	r := f.ask(t, "a.test", dns.TypeA)
	if texts(r.Answer) != "a.test. 60 IN A 203.0.113.1" || len(r.Ns) != 0 || len(r.Extra) != 1 {
		t.Fatalf("got answer %q authority %q additional %q", texts(r.Answer), texts(r.Ns), texts(r.Extra))
	}
}

func TestTheUpstreamQuestionIsRebuilt(t *testing.T) {
	asked := make(chan *dns.Msg, 1)
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) {
		asked <- m.Copy()
		zone(t, "a-rather-long-name-for-letters.test. 60 IN A 203.0.113.1")(w, m)
	})
	f := start(t, allow("a-rather-long-name-for-letters.test"), nil, o)
	var m dns.Msg
	m.SetQuestion("A-RATHER-LONG-NAME-FOR-LETTERS.TEST.", dns.TypeA)
	m.CheckingDisabled, m.AuthenticatedData = true, true
	m.SetEdns0(4096, true)
	m.IsEdns0().Option = append(m.IsEdns0().Option,
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(10, 1, 2, 0)})
	r := f.exchange(t, "udp", f.udp, &m)
	if r.Question[0].Name != "A-RATHER-LONG-NAME-FOR-LETTERS.TEST." {
		t.Errorf("the client's case came back as %s", r.Question[0].Name)
	}
	got := <-asked
	opt := got.IsEdns0()
	if opt == nil || len(opt.Option) != 0 || opt.Do() || opt.UDPSize() != 1232 || got.CheckingDisabled || got.AuthenticatedData {
		t.Errorf("upstream was asked %v", got)
	}
	name := got.Question[0].Name
	if name == strings.ToLower(name) || name == strings.ToUpper(name) {
		t.Errorf("upstream was asked %s: the case is not random", name)
	}
}

func TestDenialsReachEveryTransport(t *testing.T) {
	f := start(t, allow("a.test"), nil)
	for _, via := range []struct{ network, addr string }{{"udp", f.udp}, {"tcp", f.tcp}, {"udp", f.udp6}} {
		if via.addr == "" {
			continue
		}
		var m dns.Msg
		m.SetQuestion("denied.test.", dns.TypeA)
		began := time.Now()
		r := f.exchange(t, via.network, via.addr, &m)
		if r.Rcode != dns.RcodeNameError || r.IsEdns0() != nil || time.Since(began) > 5*time.Second {
			t.Errorf("%v: %v after %s", via, r, time.Since(began))
		}
	}
}
