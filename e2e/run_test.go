//go:build linux

package e2e

import (
	"strings"
	"testing"

	"github.com/exeat/exeat/e2e/require"
)

func TestACommandKeepsItsUserItsStatusAndItsStreams(t *testing.T) {
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			r := guarded("--quiet").as(u).with(strings.NewReader("word\n")).sh(t, "read x; echo got $x; id -u; pwd; echo complaint >&2; exit 7")
			r.want(t, 7)
			uid := strings.TrimPrefix(u.name, "uid ")
			if want := "got word\n" + uid + "\n" + scratch + "\n"; r.stdout != want {
				t.Errorf("stdout %q, want %q", r.stdout, want)
			}
			if r.stderr != "complaint\n" {
				t.Errorf("stderr %q, want the command's alone", r.stderr)
			}
		})
	}
}

func TestAnAllowlistLetsItsNamesThroughAndNothingElse(t *testing.T) {
	require.Tool(t, "curl")
	allow := []string{"--allow", "pypi.test", "--allow", "*.alias.test"}
	for _, test := range []struct {
		name, url string
		status    int
		words     []string
	}{
		{"https to an allowed name", "https://pypi.test/", 0, []string{"hello from pypi.test"}},
		{"http to an allowed name", "http://pypi.test/", 0, []string{"hello from pypi.test"}},
		{"a name below an allowed wildcard, by CNAME", "http://www.alias.test/", 0, []string{"hello from www.alias.test"}},
		{"a name that is not listed does not resolve", "https://evil.test/", 6, []string{"evil.test", "unlisted"}},
		{"an address that no name led to, by HTTP", "http://203.0.113.66/", 0, []string{"203.0.113.66", "unlisted"}},
		{"an address that no name led to, by TLS", "https://203.0.113.66/", 35, []string{"no-server-name"}},
		{"a port that nothing listed, refused at the SYN", "http://203.0.113.66:8080/", 7, []string{"unlisted"}},
	} {
		for _, u := range users() {
			t.Run(test.name+", as "+u.name, func(t *testing.T) {
				guarded(allow...).as(u).run(t, "curl", "-sS", test.url).want(t, test.status, test.words...)
			})
		}
	}
}

func TestADeniedNameIsNeverAskedUpstream(t *testing.T) {
	guarded("--allow", "pypi.test").run(t, "curl", "-sS", "https://secret-data.evil.test/").want(t, 6)
	for _, q := range world.Asked() {
		if strings.HasSuffix(q.Name, "evil.test") && strings.HasPrefix(q.Name, "secret-data") {
			t.Errorf("question %+v left the sandbox", q)
		}
	}
}
