package firewall

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// atOnceMS is ten times what is promised of a denial: others use the machine too.
const atOnceMS = 500

func TestAnAllowlistLetsOutWhatItListsAndRefusesTheRestAtOnce(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	l.enforce(fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s:22","[%s]:22","%s:8443","example.com"]}`, allowed4, allowed6, allowed4))
	to := net.JoinHostPort
	for _, c := range []struct{ why, do, address, want string }{
		{"a listed address goes straight out", "connect", to(allowed4, "22"), "done"},
		{"a listed IPv6 address too", "connect", to(allowed6, "22"), "done"},
		{"UDP to a listed address too", "send", to(allowed4, "8443"), "done"},
		{"an unlisted address is refused at the SYN", "connect", to(denied4, "22"), "connection refused"},
		{"an unlisted IPv6 address is refused at the SYN", "connect", to(denied6, "22"), "connection refused"},
		{"another port of a listed address is refused", "connect", to(allowed6, "8443"), "connection refused"},
		{"web ports come to the proxy", "connect", to(denied4, "443"), "done"},
		{"web ports come to the proxy by IPv6", "connect", to(denied6, "80"), "done"},
		{"unlisted UDP is refused at once", "send", to(denied4, "443"), "operation not permitted"},
		{"unlisted UDP is refused at once by IPv6", "send", to(denied6, "443"), "operation not permitted"},
		{"DNS comes to our resolver whatever address is asked", "send", to(denied4, "53"), "done"},
		{"DNS comes to our resolver by IPv6", "send", to(denied6, "53"), "done"},
	} {
		t.Run(c.why, func(t *testing.T) {
			marker := "marker-" + fileName(c.why)
			got, took := parseOutcome(t, l.agent(c.do, c.address, marker))
			if got != c.want {
				t.Errorf("%s: %s, want %s", c.address, got, c.want)
			}
			if c.want != "done" && took > atOnceMS {
				t.Errorf("%s: refused after %d ms, want at once", c.address, took)
			}
			direct := strings.Contains(c.why, "listed") && c.want == "done"
			if out := l.arrived(marker) > 0; out != direct {
				t.Errorf("%s: straight out %v, want %v", c.address, out, direct)
			}
		})
	}
}

// parseOutcome takes what an agent printed apart.
func parseOutcome(t testing.TB, line string) (word string, ms int) {
	t.Helper()
	word, after, timed := strings.Cut(strings.TrimPrefix(line, "error: "), " after ")
	if !timed {
		return word, 0
	}
	if _, err := fmt.Sscanf(after, "%dms", &ms); err != nil {
		t.Fatal(err)
	}
	return word, ms
}
