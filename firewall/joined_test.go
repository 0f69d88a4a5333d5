package firewall

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/exeat/exeat/policy"
)

func compiled(t testing.TB, document string, floor ...string) *policy.Compiled {
	t.Helper()
	d, _, err := policy.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	o := policy.Options{Generation: 1}
	for _, s := range floor {
		target, err := policy.ParseTarget(s)
		if err != nil {
			t.Fatal(err)
		}
		o.Floor = append(o.Floor, target)
	}
	return policy.Compile(d, o)
}

func basicInput(c *policy.Compiled) JoinedInput {
	return JoinedInput{
		V4: Ports{TCP: 41001, DNS: 41002, Explicit: 41003}, V6: Ports{TCP: 41001, DNS: 41002, Explicit: 41003},
		// No group has this id, which nft would list by its path.
		Own: Own{Level: 0, Cgroup: 1<<40 + 77}, Secrets: Secrets{Mark: 0x11223344, Priority: 0x55667788},
		ProbeMark: ProbeMark, Policy: c, Links: []string{"lo"}, LogGroup: 7,
	}
}

func TestJoinedRulesetsAreAsWrittenAndTheKernelListsThem(t *testing.T) {
	if !namespace(t) {
		return
	}
	sh(t, "ip link set lo up")
	attributed := []Attributed{
		{Addr: netip.MustParseAddr("192.0.2.80"), Opening: policy.Opening{Port: 8443}, Timeout: time.Hour},
		{Addr: netip.MustParseAddr("2001:db8::80"), Opening: policy.Opening{}, Timeout: time.Hour},
		{Addr: netip.MustParseAddr("192.0.2.81"), Opening: policy.Opening{Port: 3478, Protocol: policy.UDP}, Timeout: time.Hour},
	}
	allowlist := `{"network_mode":"allowlist","allowed_hosts":["example.com","203.0.113.9","203.0.113.10:443","203.0.113.0/28","203.0.113.0/24:8080","198.51.100.53:53","2001:db8:1::/48","[2001:db8::1]:22"],"denied_hosts":[DENIED]}`
	deny := func(s string) string { return replace(allowlist, "DENIED", s) }
	cases := map[string]func() JoinedInput{
		"an allowlist of addresses and names": func() JoinedInput {
			in := basicInput(compiled(t, deny(`"203.0.113.7"`)))
			in.Attributed = attributed
			return in
		},
		"an allowlist while a name is denied": func() JoinedInput {
			in := basicInput(compiled(t, deny(`"bad.example.com"`)))
			in.StrictDestinations = true
			return in
		},
		"no-network":                      func() JoinedInput { return basicInput(compiled(t, `"no-network"`)) },
		"public":                          func() JoinedInput { return basicInput(compiled(t, `"public"`)) },
		"public with a name in the floor": func() JoinedInput { return basicInput(compiled(t, `"public"`, "bad.test", "192.0.2.0/24")) },
		"a denylist of addresses": func() JoinedInput {
			return basicInput(compiled(t, `{"network_mode":"denylist","denied_hosts":["192.0.2.0/24","[2001:db8::1]:443"]}`))
		},
		"lockdown": func() JoinedInput {
			in := basicInput(compiled(t, `"public"`))
			in.Lockdown = true
			return in
		},
		"the engine's DNS, inbound ports, a sandbox with NET_RAW, own traffic by uid": func() JoinedInput {
			in := basicInput(compiled(t, deny("")))
			in.EngineDNS, in.NetRaw = true, true
			in.EngineUpstreams = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
			in.Inbound = []policy.Opening{{Port: 8080}, {Port: 5000, Protocol: policy.UDP}}
			in.Own = Own{UID: 61234, Bears: Secrets{Mark: 0x55443322, Priority: 0x11223344}}
			in.V6 = Ports{}
			in.Links = nil
			return in
		},
	}
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for name, input := range cases {
		t.Run(name, func(t *testing.T) {
			r := JoinedRuleset(input())
			golden(t, name, r.String())
			if err := k.Delete(JoinedRuleset(basicInput(nil)).Tables...); err != nil {
				t.Fatal(err)
			}
			if err := k.Apply(r); err != nil {
				t.Fatal(err)
			}
			compareRuleset(t, sh(t, "nft list ruleset"), r.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", fileName(name)+".nft")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; look at the change and run with -update", path)
	}
}
