//go:build linux

package containers

import (
	_ "embed"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/denials.py
var denials string

// A denial takes deniedWithin at most, by what is promised. The machine of the tests
// has others' work to do, so ten times as much fails.
const deniedWithin = 50 * time.Millisecond

// bothFamilies gives a network of both families: with Docker the default bridge is one.
func bothFamilies(t *testing.T, e *engine) []string {
	t.Helper()
	if e == docker {
		return nil
	}
	network := "net" + serial()
	e.do(t, "network", "create", "--ipv6", "--subnet", "10.89.66.0/24", "--subnet", "2001:db8:2::/64", network)
	t.Cleanup(func() { e.try("network", "rm", network) })
	return []string{"--network", network}
}

// TestBothFamilies: what is listed is reached over IPv6 too, and what is not is
// refused at once, over either, on every channel, as seen from inside.
func TestBothFamilies(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		network := bothFamilies(t, e)
		free := e.alone(t, network...)
		if !e.reaches(free, "http://[2001:db8::66]/") || !e.reaches(free, "http://203.0.113.66/") {
			t.Fatal("unguarded, it does not reach evil.test: what follows would prove nothing")
		}
		name, box := e.up(t, append(network, "--allow", "six.test", "--allow", "pypi.test")...)
		e.in(box, "curl", "-sS", "-m", "20", "https://six.test/").want(t, 0, "hello from six.test")
		e.in(box, "curl", "-6", "-sS", "-m", "20", "https://pypi.test/").want(t, 0, "hello from pypi.test")
		e.in(box, "curl", "-4", "-sS", "-m", "20", "https://pypi.test/").want(t, 0, "hello from pypi.test")
		t.Run("denials", func(t *testing.T) { e.deniedAtOnce(t, box) })
		e.exeatWith(t, `"public"`, "policy", "set", name, "-").want(t, 0)
		if !e.reaches(box, "http://[2001:db8::66]/") {
			t.Error("in public it does not reach evil.test")
		}
	})
}

// deniedAtOnce makes the measurements inside.
func (e *engine) deniedAtOnce(t *testing.T, box string) {
	t.Helper()
	var report map[string]struct {
		How []string
		MS  []float64
	}
	r := e.inWith(denials, box, "python3", "-", "15").want(t, 0)
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	for name, how := range map[string][]string{
		"silent":  {"ECONNREFUSED"},
		"http":    {"HTTP/1.1 403 Forbidden"},
		"tls":     {"TLSV1_UNRECOGNIZED_NAME"},
		"udp":     {"ECONNREFUSED", "EHOSTUNREACH", "EACCES", "EPERM"},
		"icmp":    {"ECONNREFUSED", "EHOSTUNREACH", "EACCES", "EPERM"},
		"dns_udp": {"RCODE 3", "RCODE 5"},
		"dns_tcp": {"RCODE 3", "RCODE 5"},
	} {
		for _, family := range []string{"IPv4", "IPv6"} {
			got, measured := report[name+" over "+family]
			if !measured || len(got.How) != 1 || !slices.Contains(how, got.How[0]) {
				t.Errorf("%s over %s is denied by %q, want one of %q", name, family, got.How, how)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(report)) {
		ms := report[name].MS
		median, slowest := ms[len(ms)/2], ms[len(ms)-1]
		t.Logf("%-18s %-26s median %6.2f ms, slowest %6.2f ms", name, strings.Join(report[name].How, ", "), median, slowest)
		if limit := float64(10 * deniedWithin.Milliseconds()); median > limit {
			t.Errorf("%s: median %.1f ms, want %s, and %.0f ms at the most", name, median, deniedWithin, limit)
		}
	}
}
