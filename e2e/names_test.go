//go:build linux

package e2e

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/require"
)

// attempt is one row of bypass.md section 4: what is tried under an allowlist,
// what the client sees, and what the log says of it.
type attempt struct {
	row   string
	allow string // comma-separated; by default pypi.test and *.alias.test
	// proxied tells the client of the explicit proxy.
	proxied bool
	line    string // of shell
	stdin   string
	// status and words are of the command.
	status int
	words  []string
	// log is the only denial, or an allowed decision.
	log []string
}

// reached are the origins that an attempt must not reach.
const (
	evilAddr = "203.0.113.66"
	goodAddr = "203.0.113.10"
)

func (a attempt) run(t *testing.T, u user) {
	t.Helper()
	allow := a.allow
	if allow == "" {
		allow = "pypi.test,*.alias.test"
	}
	flags := []string{"--quiet", "--proxy-env=" + strconv.FormatBool(a.proxied)}
	for target := range strings.SplitSeq(allow, ",") {
		flags = append(flags, "--allow", target)
	}
	before := arrivals(evilAddr)
	s, log := guarded(flags...).as(u).with(strings.NewReader(a.stdin)).logged(t)
	r := s.sh(t, strings.NewReplacer("AGENT", agent, "EVIL", evilAddr, "GOOD", goodAddr).Replace(a.line))
	r.want(t, a.status, a.words...)
	log.wantOnly(t, a.log...)
	if r.took > 20*time.Second {
		t.Errorf("it took %s: a denial does not hang", r.took)
	}
	if after := arrivals(evilAddr); after != before {
		t.Errorf("%d connections reached %s", after-before, evilAddr)
	}
}

func runAttempts(t *testing.T, attempts []attempt) {
	require.Tool(t, "curl")
	each(t, func(t *testing.T, u user) {
		for _, a := range attempts {
			t.Run(a.row, func(t *testing.T) { a.run(t, u) })
		}
	})
}

// request is an HTTP request head, with a Host for each of hosts.
func request(target string, lines ...string) string {
	return "GET " + target + " HTTP/1.1\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
}

func TestTheNameThatIsShownDecidesAndIsDialledByUs(t *testing.T) {
	runAttempts(t, []attempt{
		{
			row: "B50 an allowed server name at a stranger's address", line: "curl -sS --connect-to pypi.test:443:EVIL:443 https://pypi.test/",
			words: []string{"hello from pypi.test"}, log: []string{"allow rule tls pypi.test:443 (pypi.test)"},
		},
		{
			row: "B50 an allowed Host at a stranger's address", line: "curl -sS -H 'Host: pypi.test' http://EVIL/",
			words: []string{"hello from pypi.test"}, log: []string{"allow rule http pypi.test:80 (pypi.test)"},
		},
		{
			row: "B50 an allowed name at a stranger's address, TLS on a port of its own", line: "curl -sS --connect-to pypi.test:8443:EVIL:8443 https://pypi.test:8443/",
			status: 7, log: []string{"deny unlisted packet 203.0.113.66:8443"},
		},
		{
			row: "B51 a second request to another Host", line: "AGENT raw pypi.test:80",
			stdin: request("/", "Host: pypi.test") + request("/", "Host: evil.test", "Connection: close"),
			words: []string{"hello from pypi.test", "403 Forbidden", "evil.test:80 denied: unlisted"},
			log:   []string{"deny unlisted http evil.test:80"},
		},
		{
			row: "B51 pipelined, and back again", line: "AGENT raw pypi.test:80",
			stdin: request("/", "Host: pypi.test") + request("/", "Host: evil.test") + request("/echo-headers", "Host: pypi.test", "X-Third: came", "Connection: close"),
			words: []string{"evil.test:80 denied: unlisted"}, log: []string{"deny unlisted http evil.test:80"},
		},
		{
			row: "B53 an absolute URI and another Host", line: "AGENT raw pypi.test:80",
			stdin: request("http://pypi.test/", "Host: evil.test", "Connection: close"),
			words: []string{"40"}, log: []string{"deny name-mismatch http"},
		},
		{
			row: "B53 a denied absolute URI and an allowed Host", line: "AGENT raw pypi.test:80",
			stdin: request("http://evil.test/", "Host: pypi.test", "Connection: close"),
			words: []string{"40"}, log: []string{"deny name-mismatch http"},
		},
		{
			row: "B54 h2c by prior knowledge", line: "AGENT streams pypi.test:80 pypi.test evil.test",
			words: []string{"pypi.test 200", "evil.test 403"}, log: []string{"deny unlisted http evil.test:80"},
		},
		{
			row: "B54 an upgrade to h2c is not passed on", line: "AGENT raw pypi.test:80",
			stdin: request("/echo-headers", "Host: pypi.test", "Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
			words: []string{"HTTP/1.1 200 OK"}, log: []string{"allow rule http pypi.test:80 (pypi.test)"},
		},
		{
			row: "B59 a name that only ends like an allowed one", line: "curl -sS https://evilpypi.test/; curl -sS https://pypi.test.evil.test/",
			status: 6, log: []string{"deny unlisted dns evilpypi.test", "deny unlisted dns pypi.test.evil.test"},
		},
		{
			row: "B59 the name above a wildcard", line: "curl -sS --connect-to alias.test:443:EVIL:443 https://alias.test/",
			status: 35, log: []string{"deny unlisted tls alias.test:443"},
		},
		{
			row: "B60 an address in disguise as a Host", line: "AGENT raw EVIL:80", allow: "pypi.test",
			stdin: request("/", "Host: 3405803842", "Connection: close"),
			words: []string{"40"}, log: []string{"deny malformed http"},
		},
		{
			row: "B60 an address as a Host", line: "AGENT raw GOOD:80", stdin: request("/", "Host: 203.0.113.66", "Connection: close"),
			words: []string{"40"}, log: []string{"deny"},
		},
		{
			row: "B63 port 853 and DNS over HTTPS are names like others", line: "curl -sS --connect-to dns.evil.test:443:EVIL:443 https://dns.evil.test/dns-query",
			status: 35, log: []string{"deny unlisted tls dns.evil.test:443"},
		},
		{
			row: "B67 another port of an allowed host", line: "AGENT tcp ssh.test:22 && AGENT tcp ssh.test:7", allow: "ssh.test:22",
			status: 1, words: []string{"SSH-2.0", "refused"}, log: []string{"deny unlisted packet ssh.test:7"},
		},
	})
}

func TestHTTPThatCouldBeReadTwoWaysIsRefused(t *testing.T) {
	var attempts []attempt
	for row, head := range map[string]string{
		"B52 Content-Length and Transfer-Encoding": "POST / HTTP/1.1\r\nHost: pypi.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"B52 two lengths":                          "POST / HTTP/1.1\r\nHost: pypi.test\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		"B52 a folded header":                      "GET / HTTP/1.1\r\nHost: pypi.test\r\nX-A: b\r\n c\r\n\r\n",
		"B52 a space before the colon":             "GET / HTTP/1.1\r\nHost : pypi.test\r\n\r\n",
		"B52 user information in Host":             "GET / HTTP/1.1\r\nHost: pypi.test@evil.test\r\n\r\n",
		"B52 two Hosts":                            "GET / HTTP/1.1\r\nHost: pypi.test\r\nHost: evil.test\r\n\r\n",
		"B52 no Host":                              "GET / HTTP/1.1\r\nX-A: b\r\n\r\n",
		"B55 NUL in Host":                          "GET / HTTP/1.1\r\nHost: pypi.test\x00.evil.test\r\n\r\n",
		"B59 fullwidth dots in Host":               "GET / HTTP/1.1\r\nHost: pypi\uff0etest\r\n\r\n",
		"B59 the Kelvin sign in Host":              "GET / HTTP/1.1\r\nHost: \u212a.test\r\n\r\n",
		"B52 an unknown transfer coding":           "POST / HTTP/1.1\r\nHost: pypi.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
	} {
		attempts = append(attempts, attempt{
			row: row, line: "AGENT raw pypi.test:80 half", stdin: head, words: []string{"HTTP/1.1 400 Bad Request"},
			log: []string{"deny malformed http"},
		})
	}
	runAttempts(t, attempts)
}

// echFor is an ECHConfigList (RFC 9849 section 4) whose public name is outer.
func echFor(outer string) string {
	key := make([]byte, 32)
	key[0] = 9 // the X25519 base point serves as a key as well as any
	body := []byte{7, 0, 0x20, 0, 32}
	body = append(body, key...)
	body = append(body, 0, 4, 0, 1, 0, 1, 32, byte(len(outer)))
	body = append(append(body, outer...), 0, 0)
	config := append([]byte{0xfe, 0x0d, 0, byte(len(body))}, body...)
	list := append([]byte{0, byte(len(config))}, config...)
	return base64.StdEncoding.EncodeToString(list)
}

func TestTLSIsReadWholeAndJudgedByItsServerName(t *testing.T) {
	runAttempts(t, []attempt{
		{
			row: "B55 no server name", line: "AGENT hello pypi.test:443 ''", status: 1, words: []string{"unrecognized name"},
			log: []string{"deny no-server-name tls 203.0.113.10:443"},
		},
		{
			row: "B55 an address for a server name", line: "openssl s_client -connect pypi.test:443 -servername EVIL -brief 2>&1", status: 1,
			words: []string{"unrecognized name"}, log: []string{"deny"},
		},
		{
			row: "B55 a server name of other letters", line: "printf x | openssl s_client -connect pypi.test:443 -servername 'pypi.test/../evil' -brief 2>&1", status: 1,
			words: []string{"unrecognized name"}, log: []string{"deny malformed tls"},
		},
		{
			row: "B56 a ClientHello in one-byte records and segments, allowed", line: "AGENT hello -piece 1 pypi.test:443 pypi.test",
			words: []string{"hello from pypi.test"}, log: []string{"allow rule tls pypi.test:443 (pypi.test)"},
		},
		{
			row: "B56 a ClientHello in one-byte records and segments, denied", line: "AGENT hello -piece 1 EVIL:443 evil.test", status: 1,
			words: []string{"unrecognized name"}, log: []string{"deny unlisted tls evil.test:443"},
		},
		{
			row: "B57 ECH under a name that is not allowed", line: "AGENT hello -ech " + echFor("outer.test") + " GOOD:443 pypi.test", status: 1,
			words: []string{"unrecognized name"}, log: []string{"deny encrypted-client-hello tls outer.test:443"},
		},
		{
			row: "B57 ECH under an allowed name is that name's", line: "AGENT hello -ech " + echFor("pypi.test") + " GOOD:443 evil.test", status: 1,
			words: []string{"server rejected ECH"}, log: []string{"allow rule tls pypi.test:443 (pypi.test)"},
		},
		{
			row: "B58 opaque bytes on 443", line: "AGENT raw pypi.test:443 half", stdin: "SSH-2.0-tunnel\r\n", status: 1,
			words: []string{"reset"}, log: []string{"deny malformed"},
		},
		{
			row: "B58 opaque bytes on 80", line: "AGENT raw pypi.test:80 half", stdin: "\x01\x02\x03\x04tunnel\r\n", status: 1,
			words: []string{"reset"}, log: []string{"deny malformed"},
		},
		{
			row: "B58 the first byte of TLS and then something else", line: "AGENT raw pypi.test:443 half", stdin: "\x16\x03\x01\x00\x04abcd", status: 0,
			words: []string{""}, log: []string{"deny malformed"},
		},
		{
			row: "B59 a zero-width joiner in a server name", line: "openssl s_client -connect pypi.test:443 -servername $(printf 'pypi\\342\\200\\215.test') -brief 2>&1", status: 1,
			words: []string{"unrecognized name"}, log: []string{"deny malformed tls"},
		},
		{
			row: "B53 CONNECT to one name, TLS to another", line: "P=$(echo $HTTP_PROXY | cut -d/ -f3); openssl s_client -proxy $P -connect pypi.test:443 -servername evil.test -brief 2>&1", allow: "pypi.test,evil.test", proxied: true,
			status: 1, words: []string{""}, log: []string{"deny name-mismatch tls evil.test:443"},
		},
	})
}

// TestACertificateOfTheWrongNameIsTheClientsToRefuse is B66: what is inside TLS is
// not seen, so a Host that differs from the server name reaches the allowed name's
// own server, and no other.
func TestACertificateOfTheWrongNameIsTheClientsToRefuse(t *testing.T) {
	s, log := guarded("--allow", "cdn-a.test").logged(t)
	s.run(t, "curl", "-sS", "-H", "Host: cdn-b.test", "https://cdn-a.test/").want(t, 0, "hello from cdn-b.test")
	log.wantOnly(t, "allow rule tls cdn-a.test:443 (cdn-a.test)")
}

func TestAServerThatIsMutedIsNotWaitedForLongerThanItSays(t *testing.T) {
	t.Parallel()
	// Nothing is sent on port 443: after the sniffer's ten seconds, deny `limit`.
	s, log := guarded("--allow", "pypi.test").logged(t)
	r := s.sh(t, "sleep 13 | "+agent+" raw pypi.test:443; true")
	if r.took < 8*time.Second {
		t.Errorf("it took %s", r.took)
	}
	log.want(t, fmt.Sprintf("deny limit opaque %s:443", goodAddr))
}
