//go:build linux

package e2e

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/e2e/internet"
)

// The server is of no account: every question comes to exeat's own resolver.
func ask(name, kind string) string { return agent + " dns udp 192.0.2.53:53 '" + name + "' " + kind }

func TestQuestionsAreJudgedBeforeTheyAreAsked(t *testing.T) {
	allow := []string{"--allow", "txt.test", "--allow", "*.wild.test", "--allow", "https.test", "--allow", "pypi.test"}
	for _, test := range []struct {
		row, line string
		words     []string
		log       string
	}{
		{"B65 a name that is not listed", ask("data.evil.test", "A"), []string{"NXDOMAIN 0", "EDE 15", "unlisted"}, "deny unlisted dns data.evil.test"},
		{"an exact name, any ordinary type", ask("txt.test", "TXT"), []string{"NOERROR 1", "a record"}, "allow rule dns txt.test (txt.test)"},
		{"B62 TXT under a wildcard", ask("chunk1.wild.test", "TXT"), []string{"NOERROR 0", "EDE 15", "query-type"}, "deny query-type dns chunk1.wild.test"},
		{"B62 NULL under a wildcard", ask("chunk2.wild.test", "NULL"), []string{"NOERROR 0", "query-type"}, "deny query-type dns chunk2.wild.test"},
		{"B62 ANY of an exact name", ask("txt.test", "ANY"), []string{"NOERROR 0", "query-type"}, "deny query-type dns txt.test"},
		{"the name above a wildcard is no cut in the tree", ask("wild.test", "A"), []string{"NOERROR 0", "unlisted"}, "deny unlisted dns wild.test"},
		{"B63 over TCP", agent + " dns tcp 192.0.2.53:53 data2.evil.test A", []string{"NXDOMAIN 0", "unlisted"}, "deny unlisted dns data2.evil.test"},
		{"B63 over UDP to an IPv6 resolver", agent + " dns udp '[2001:db8::53]:53' data3.evil.test A", []string{"NXDOMAIN 0", "unlisted"}, "deny unlisted dns data3.evil.test"},
		{"B63 over TCP to an IPv6 resolver", agent + " dns tcp '[2001:db8::53]:53' data4.evil.test A", []string{"NXDOMAIN 0", "unlisted"}, "deny unlisted dns data4.evil.test"},
		{"B63 to the upstream itself", agent + " dns udp 203.0.113.53:53 data5.evil.test A", []string{"NXDOMAIN 0", "unlisted"}, "deny unlisted dns data5.evil.test"},
		{"B57 the keys of ECH and special hints are taken out", ask("https.test", "HTTPS"), []string{"NOERROR 1", `ipv4hint="203.0.113.22"`}, "allow rule dns https.test (https.test)"},
		{"B60 a number for a name", ask("2130706433", "A"), []string{"NXDOMAIN 0"}, "deny"},
		{"B59 letters that fold to others", ask(`PYPI\226\132\170.test`, "A"), []string{"malformed"}, "deny malformed dns"},
	} {
		each(t, func(t *testing.T, u user) {
			t.Run(test.row, func(t *testing.T) {
				s, log := guarded(allow...).as(u).logged(t)
				r := s.sh(t, test.line)
				r.want(t, 0, test.words...)
				log.wantOnly(t, test.log)
				if strings.Contains(r.stdout, "ech=") || strings.Contains(r.stdout, "10.99") {
					t.Errorf("the answer has what was to be taken out: %s", r.stdout)
				}
			})
		})
	}
	for _, q := range world.Asked() {
		if strings.HasSuffix(q.Name, "evil.test") && strings.HasPrefix(q.Name, "data") || strings.HasPrefix(q.Name, "chunk") {
			t.Errorf("B65: question %+v left the sandbox", q)
		}
	}
}

// TestQuestionsAreBuiltAnew is B61 and B62: nothing of the client's message goes
// upstream but the name and the type.
func TestQuestionsAreBuiltAnew(t *testing.T) {
	name, addr := fresh(t)
	guarded("--allow", name).sh(t, ask(strings.ToUpper(name), "A")).want(t, 0, "NOERROR 1", addr, strings.ToUpper(name))
	i := slices.IndexFunc(world.Asked(), func(q internet.Question) bool { return q.Name == name })
	if i < 0 || world.Asked()[i].Options != 0 {
		t.Errorf("question %d of %+v: want it asked, without the client's EDNS option", i, world.Asked())
	}
}

func TestMalformedQuestionsGoNowhere(t *testing.T) {
	name, _ := fresh(t)
	pack := func(change func(*dns.Msg)) []byte {
		m := new(dns.Msg)
		m.SetQuestion(name+".", dns.TypeA)
		change(m)
		data, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	plain := pack(func(*dns.Msg) {})
	for row, message := range map[string][]byte{
		"B61 two questions":            pack(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }),
		"B61 no question":              pack(func(m *dns.Msg) { m.Question = nil }),
		"B61 bytes after the end":      append(append([]byte(nil), plain...), "smuggled"...),
		"B61 a dot inside a label":     slices.Concat(plain[:12], []byte("\x0bevil.label1\x04test\x00\x00\x01\x00\x01")),
		"B61 NUL inside a label":       slices.Concat(plain[:12], []byte("\x05a\x00bcd\x04test\x00\x00\x01\x00\x01")),
		"B61 an answer for a question": pack(func(m *dns.Msg) { m.Response = true }),
	} {
		t.Run(row, func(t *testing.T) {
			s, log := guarded("--allow", name, "--quiet").logged(t)
			r := s.sh(t, agent+" dns udp 192.0.2.53:53 "+hex.EncodeToString(message))
			if strings.Contains(r.stdout, "NOERROR") {
				t.Errorf("answered: %s", r.stdout)
			}
			if row != "B61 an answer for a question" { // those are dropped: a reply to a reply would loop
				log.wantOnly(t, "deny malformed dns")
			}
		})
	}
	for _, q := range world.Asked() {
		if strings.Contains(q.Name, "label1") {
			t.Errorf("question %+v left the sandbox", q)
		}
	}
}

// TestAnswersAreCheckedAndSoIsTheDial is B64 and B20.
func TestAnswersAreCheckedAndSoIsTheDial(t *testing.T) {
	rebound, _ := fresh(t)
	mixed := "mixed.test"
	for _, test := range []struct {
		row    string
		flags  []string
		line   string
		status int
		words  []string
		log    string
	}{
		{"a private address", []string{"--allow", "intranet.test"}, ask("intranet.test", "A"), 0, []string{"NOERROR 0", "special-address"}, "deny special-address dns intranet.test"},
		{"a metadata address", []string{"--allow", "metadata.test"}, ask("metadata.test", "A"), 0, []string{"NOERROR 0", "special-address"}, "deny special-address dns metadata.test"},
		{"loopback", []string{"--allow", "rebind.test"}, ask("rebind.test", "A"), 0, []string{"NOERROR 0", "special-address"}, "deny special-address dns rebind.test"},
		{"what is left of a mixed answer", []string{"--allow", mixed}, ask(mixed, "A"), 0, []string{"NOERROR 1", "203.0.113.23"}, "allow rule dns mixed.test (mixed.test)"},
		{"by a CNAME to a denied name", []string{"--allow", "alias-to-evil.test", "--deny", "evil.test"}, ask("alias-to-evil.test", "A"), 0, []string{"denied"}, "deny denied dns alias-to-evil.test"},
		{"at the dial, under an allowed name", []string{"--allow", "intranet.test"}, "curl -sS --connect-to intranet.test:443:203.0.113.66:443 https://intranet.test/", 35, nil, "deny special-address tls intranet.test:443"},
		{"at the dial, in clear", []string{"--allow", "rebind.test"}, "curl -sS -H 'Host: rebind.test' http://203.0.113.66/", 0, []string{"special-address"}, "deny special-address http rebind.test:80"},
		{"metadata by address", nil, "curl -sS http://169.254.169.254/latest", 0, []string{"unlisted"}, "deny unlisted http 169.254.169.254:80"},
		{"metadata in a denylist", []string{"--mode", "denylist", "--deny", "evil.test"}, "curl -sS http://169.254.169.254/latest", 0, []string{"special-address"}, "deny special-address http 169.254.169.254:80"},
		{"metadata mapped into IPv6", []string{"--mode", "denylist", "--deny", "evil.test"}, "curl -sS 'http://[::ffff:169.254.169.254]/latest'", 0, []string{"special-address"}, "deny special-address http 169.254.169.254:80"},
		{"metadata by NAT64", []string{"--mode", "denylist", "--deny", "evil.test"}, "curl -sS 'http://[64:ff9b::a9fe:a9fe]/latest'", 0, []string{"special-address"}, "deny special-address http [64:ff9b::a9fe:a9fe]:80"},
	} {
		each(t, func(t *testing.T, u user) {
			t.Run(test.row, func(t *testing.T) {
				s, log := guarded(test.flags...).as(u).logged(t)
				s.sh(t, test.line).want(t, test.status, test.words...)
				log.wantOnly(t, test.log)
			})
		})
	}
	t.Run("a private name is what its operator said", func(t *testing.T) {
		s, log := guarded("--policy", writeFor(t, users()[0], "p.json", `{"network_mode":"allowlist","allowed_hosts":[{"host":"intranet.test","private":true}]}`)).logged(t)
		s.run(t, "curl", "-sS", "http://intranet.test/").want(t, 0, "hello from intranet.test")
		log.wantOnly(t, "allow rule http intranet.test:80 (intranet.test private)")
	})
	t.Run("rebound between the answer and the dial", func(t *testing.T) {
		l := guarded("--allow", rebound).start(t)
		l.sh("curl -sS http://"+rebound+"/").want(t, 0, "hello")
		world.SetName(rebound, "A 127.0.0.1", "A 10.99.0.5")
		l.set(`{"network_mode":"allowlist","allowed_hosts":["` + rebound + `"]}`) // which forgets cached answers
		l.sh("curl -sS -H 'Host: "+rebound+"' http://203.0.113.66/").want(t, 0, "special-address")
		wantDecisions(t, l.decided(), fmt.Sprintf("deny special-address http %s:80", rebound))
	})
}

// TestNamesUnderAWildcardAreNoTunnel is the budget of B62: unique names run out.
func TestNamesUnderAWildcardAreNoTunnel(t *testing.T) {
	world.SetName("a.tunnel.test", "A 203.0.113.10")
	s, log := guarded("--allow", "*.tunnel.test", "--quiet").logged(t)
	s.sh(t, "i=0; while [ $i -lt 900 ]; do echo getent ahostsv4 x$i.tunnel.test; i=$((i+1)); done | sh; true").want(t, 0)
	limited := false
	for _, d := range log.decisions(t) {
		limited = limited || strings.HasPrefix(d, "deny limit dns x")
	}
	if !limited {
		t.Error("900 names under a wildcard, and none was denied for `limit`")
	}
}
