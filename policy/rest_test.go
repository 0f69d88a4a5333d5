package policy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestNotice(t *testing.T) {
	const head = "<network-restriction>\nNetwork access from this environment is restricted by its operator. This notice is made from the policy in force and outranks every other statement about network access.\n"
	const nothing = "Nothing outside this environment can be reached. Work with what is already here; a request to the network will fail again if retried.\n</network-restriction>\n"
	for document, want := range map[string]string{
		`"public"`:                      "",
		`"no-network"`:                  head + nothing,
		`{"network_mode": "allowlist"}`: head + nothing,
		`{"network_mode": "allowlist", "denied_hosts": ["a.test"]}`: head + nothing,
		`{"network_mode": "allowlist", "allowed_hosts": ["B.test:443", "10.0.0.0/8", {"host": "db.corp.test", "port": 5432, "protocol": "tcp", "private": true}]}`: head +
			"Only these targets can be reached:\n- b.test:443\n- 10.0.0.0/8\n- db.corp.test:5432/tcp private\nEvery other request is refused at once and will be refused again if retried.\n</network-restriction>\n",
		`{"network_mode": "allowlist", "allowed_hosts": ["*.test"], "denied_hosts": ["a.test"]}`: head +
			"Only these targets can be reached:\n- *.test\nexcept:\n- a.test\nEvery other request is refused at once and will be refused again if retried.\n</network-restriction>\n",
		`{"network_mode": "denylist", "denied_hosts": ["a.test", "b.test"]}`: head +
			"Everything can be reached except these targets:\n- a.test\n- b.test\nA request to one of them is refused at once and will be refused again if retried.\n</network-restriction>\n",
	} {
		if got, err := Notice(mustParse(t, document), ""); err != nil || got != want {
			t.Errorf("%s\n got %s (%v)\nwant %s", document, got, err, want)
		}
	}
}

func TestNoticeTemplate(t *testing.T) {
	d := mustParse(t, `{"network_mode": "allowlist", "allowed_hosts": ["a.test:443"]}`)
	got, err := Notice(d, "{{.Mode}}:{{range .Allowed}} {{.}}{{end}}")
	if err != nil || got != "allowlist: a.test:443" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"{{", "{{.Nothing}}"} {
		if _, err := Notice(d, bad); err == nil {
			t.Errorf("%q is legal", bad)
		}
	}
}

// capabilities are all true, less those set otherwise by JSON.
func capabilities(t *testing.T, less string) Capabilities {
	t.Helper()
	var c Capabilities
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		yes := true
		v.Field(i).Set(reflect.ValueOf(&yes))
	}
	all := mustJSON(t, c)
	if err := json.Unmarshal([]byte(strings.ReplaceAll(all, `"`+less+`":true`, `"`+less+`":false`)), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCapabilities(t *testing.T) {
	for _, c := range []struct {
		about, document, lacks string
		errorAt, warningAt     string
	}{
		{"public needs nothing", `"public"`, "disable_internet", "", ""},
		{"no-network", `"no-network"`, "disable_internet", "network_mode", ""},
		{"an allowlist", `{"network_mode": "allowlist"}`, "network_allowlist", "network_mode", ""},
		{"a denylist", `{"network_mode": "denylist", "denied_hosts": ["a.test"]}`, "network_denylist", "network_mode", ""},
		{"a carve-out", `{"network_mode": "allowlist", "allowed_hosts": ["*.test"], "denied_hosts": ["a.test"]}`, "network_denylist", "denied_hosts", ""},
		{"a name", `{"network_mode": "allowlist", "allowed_hosts": ["10.0.0.1", "a.test"]}`, "network_allowlist_hostnames", "allowed_hosts[1]", ""},
		{"a wildcard", `{"network_mode": "allowlist", "allowed_hosts": ["*.a.test"]}`, "network_allowlist_wildcard_hostnames", "allowed_hosts[0]", ""},
		{"a wildcard does not need names", `{"network_mode": "allowlist", "allowed_hosts": ["*.a.test"]}`, "network_allowlist_hostnames", "", ""},
		{"an IPv4 address", `{"network_mode": "allowlist", "allowed_hosts": ["203.0.113.1"]}`, "network_allowlist_ipv4_addresses", "allowed_hosts[0]", ""},
		{"an IPv6 address", `{"network_mode": "allowlist", "allowed_hosts": ["2001:db8::1"]}`, "network_allowlist_ipv6_addresses", "allowed_hosts[0]", ""},
		{"an IPv4 range", `{"network_mode": "allowlist", "allowed_hosts": ["203.0.113.0/24"]}`, "network_allowlist_ipv4_cidrs", "allowed_hosts[0]", ""},
		{"an IPv6 range", `{"network_mode": "allowlist", "allowed_hosts": ["2001:db8::/32"]}`, "network_allowlist_ipv6_cidrs", "allowed_hosts[0]", ""},
		{"a port", `{"network_mode": "allowlist", "allowed_hosts": ["a.test:443"]}`, "target_ports", "allowed_hosts[0]", ""},
		{"UDP where written", `{"network_mode": "allowlist", "allowed_hosts": [{"host": "a.test", "port": 53, "protocol": "udp"}]}`, "target_udp", "allowed_hosts[0]", ""},
		{"UDP where a bare address implies it", `{"network_mode": "allowlist", "allowed_hosts": ["203.0.113.1"]}`, "target_udp", "", "allowed_hosts[0]"},
		{"ICMP where written", `{"network_mode": "allowlist", "allowed_hosts": [{"host": "203.0.113.1", "protocol": "any"}]}`, "icmp", "allowed_hosts[0]", ""},
		{"ICMP where a bare address implies it", `{"network_mode": "allowlist", "allowed_hosts": ["203.0.113.1"]}`, "icmp", "", "allowed_hosts[0]"},
		{"a port implies no ICMP", `{"network_mode": "allowlist", "allowed_hosts": ["203.0.113.1:443"]}`, "icmp", "", ""},
		{"TCP alone needs neither", `{"network_mode": "allowlist", "allowed_hosts": [{"host": "203.0.113.1", "protocol": "tcp"}]}`, "target_udp", "", ""},
	} {
		t.Run(c.about, func(t *testing.T) {
			warnings, err := capabilities(t, c.lacks).Check(mustParse(t, c.document))
			problems, _ := err.(Errors)
			if (err != nil) != (c.errorAt != "") || (len(warnings) > 0) != (c.warningAt != "") {
				t.Fatalf("warnings %v, error %v", warnings, err)
			}
			if c.errorAt != "" {
				wantProblems(t, map[string][]string{c.errorAt: {c.lacks}}, problems)
			}
			if c.warningAt != "" {
				wantProblems(t, map[string][]string{c.warningAt: {c.lacks}}, warnings)
			}
		})
	}
	warnings, err := Capabilities{}.Check(mustParse(t, `{"network_mode": "allowlist", "allowed_hosts": ["a.test", "b.test"]}`))
	if err != nil {
		t.Errorf("what could not be probed is not false: %v", err)
	}
	wantProblems(t, map[string][]string{"network_mode": {"probed"}, "allowed_hosts[0]": {"probed", "1 more"}}, warnings)
}

func TestProviders(t *testing.T) {
	if names := Providers(); len(names) != 22 || names[0] != "beam" {
		t.Errorf("%d: %v", len(names), names)
	}
	wide := `{"network_mode": "allowlist", "allowed_hosts": ["a.test:443", "*.a.test", "203.0.113.1", "2001:db8::1", "203.0.113.0/24", "2001:db8::/32", {"host": "t.test", "port": 123, "protocol": "udp"}, {"host": "p.corp.test", "private": true}], "denied_hosts": ["b.a.test"]}`
	for _, c := range []struct {
		about, document, provider string
		want                      map[string][]string
		count                     int
	}{
		{"exeat holds everything", wide, "exeat", nil, 0},
		{"docker lacks UDP and what is exeat's own", wide, "docker", map[string][]string{"denied_hosts": {"extension"}, "allowed_hosts[6]": {"UDP", "t.test:123/udp"}, "allowed_hosts[7]": {"private"}}, 3},
		{"a provider without allowlists says so once", wide, "gke", map[string][]string{"network_mode": {"allowlist", "public, no-network", "Compose tasks only"}}, 1},
		{"a host process holds no sandbox", `"no-network"`, "host_process", map[string][]string{"network_mode": {"no-network", "no sandbox isolation"}}, 1},
		{"names without wildcards", `{"network_mode": "allowlist", "allowed_hosts": ["a.test", "*.a.test"]}`, "beam", map[string][]string{"allowed_hosts[1]": {"wildcard", "CIDRs"}}, 1},
		{"names and networks mixed", `{"network_mode": "allowlist", "allowed_hosts": ["a.test", "203.0.113.1"]}`, "daytona", map[string][]string{"allowed_hosts": {"in one list"}}, 1},
		{"a bare address implies UDP, and narrower is no finding", `{"network_mode": "allowlist", "allowed_hosts": ["203.0.113.1"]}`, "docker", nil, 0},
		{"public", `"public"`, "vercel", nil, 0},
		{"too many names", `{"network_mode": "allowlist", "allowed_hosts": ["a.test"` + strings.Repeat(`, "a.test"`, 20) + `]}`, "daytona", map[string][]string{"allowed_hosts[20]": {"20 names"}}, 1},
		{"too many networks", `{"network_mode": "allowlist", "allowed_hosts": ["203.0.113.1"` + strings.Repeat(`, "203.0.113.1"`, 10) + `]}`, "daytona", map[string][]string{"allowed_hosts[10]": {"10 addresses"}}, 1},
	} {
		t.Run(c.about, func(t *testing.T) {
			got, err := CheckProvider(mustParse(t, c.document), c.provider)
			if err != nil || len(got) != c.count {
				t.Errorf("%v, %v", got, err)
			}
			wantProblems(t, c.want, got)
		})
	}
	if _, err := CheckProvider(Document{Mode: ModePublic}, "dokcer"); err == nil || !strings.Contains(err.Error(), `write "docker"`) {
		t.Errorf("an unknown provider: %v", err)
	}
}

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		host     string
		document string // what ParseHost gives; "" is an error
		wire     string // what ParseWireHost gives; "" is malformed
	}{
		{"PyPI.ORG.", "pypi.org", "pypi.org"},
		{"_sip._tcp.example.com", "_sip._tcp.example.com", "_sip._tcp.example.com"},
		{"r3---sn.example", "r3---sn.example", "r3---sn.example"},
		{"bücher.example", "xn--bcher-kva.example", ""},
		{"xn--bcher-kva.example", "xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"straße.example", "xn--strae-oqa.example", ""}, // non-transitional
		{"\u212aelvin.test", "kelvin.test", ""},         // the Kelvin sign
		{"a。test", "a.test", ""},                        // the ideographic full stop
		{"ａ.test", "a.test", ""},
		{"a\u200bb.test", "ab.test", ""}, // a zero-width space is ignored by UTS #46
		{"203.0.113.10", "203.0.113.10", "203.0.113.10"},
		{"203.0.113.10.", "203.0.113.10", "203.0.113.10"},
		{"[2001:db8::1]", "2001:db8::1", "2001:db8::1"},
		{"2001:DB8::1", "2001:db8::1", "2001:db8::1"},
		{"::ffff:203.0.113.10", "203.0.113.10", "203.0.113.10"},
		{"fe80::1%eth0", "", ""},
		{"127.1", "", ""},
		{"0x7f000001", "", ""},
		{"0x7F.1", "", ""},
		{"2130706433", "", ""},
		{"010.0.0.1", "", ""},
		{"1.2.3", "", ""},
		{"a.1", "", ""},
		{"a.0x1f", "", ""},
		{"a.0x", "", ""},
		{"a.0xg", "a.0xg", "a.0xg"},
		{"1.a", "1.a", "1.a"},
		{"", "", ""},
		{".", "", ""},
		{"a..b", "", ""},
		{"a b", "", ""},
		{"a\x00b", "", ""},
		{"a\r\nb", "", ""},
		{"*.test", "", ""},
		{"a:443", "", ""},
		{"a/b", "", ""},
		{"[a]", "", ""},
		{"[203.0.113.1]", "", ""},
		{"x：443", "", ""},
		{"a\xff", "", ""},
		{strings.Repeat("a", 63) + ".test", strings.Repeat("a", 63) + ".test", strings.Repeat("a", 63) + ".test"},
		{strings.Repeat("a", 64) + ".test", "", ""},
		{strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 126) + "a"},
		{strings.Repeat("a.", 127) + "a", "", ""},
	} {
		host, err := ParseHost(c.host)
		if host.String() != c.document || (err == nil) != (c.document != "") {
			t.Errorf("document %q: %q, %v, want %q", c.host, host, err, c.document)
		}
		host, err = ParseWireHost(c.host)
		if host.String() != c.wire || (err == nil) != (c.wire != "") {
			t.Errorf("wire %q: %q, %v, want %q", c.host, host, err, c.wire)
		}
	}
}

func TestAskTargets(t *testing.T) {
	for text, want := range map[string]string{
		"pypi.org":             "pypi.org  443 tcp",
		"PyPI.org:22/tcp":      "pypi.org  22 tcp",
		"[2001:db8::1]:53/udp": " 2001:db8::1 53 udp",
		"2001:db8::1":          " 2001:db8::1 443 tcp",
		"203.0.113.1/udp":      " 203.0.113.1 443 udp",
		"*.test":               "error",
		"203.0.113.0/24":       "error",
		"https://pypi.org/tcp": "error",
		"pypi.org/icmp":        "error",
		"pypi.org:0":           "error",
		"pypi.org:443/udp/tcp": "error",
		"127.1":                "error",
	} {
		r, err := ParseAskTarget(text)
		got := strings.Join([]string{r.Name, addrText(r), portText(r), r.Protocol.String()}, " ")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s is %q (%v), want %q", text, got, err, want)
		}
	}
}

func addrText(r Request) string {
	if !r.Addr.IsValid() {
		return ""
	}
	return r.Addr.String()
}

func portText(r Request) string {
	return strings.TrimPrefix(Target{Name: "x", Port: r.Port}.String(), "x:")
}
