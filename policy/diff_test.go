package policy_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/exeat/exeat/policy"
)

func TestCompareSaysWhatIsGainedAndLost(t *testing.T) {
	for _, c := range []struct {
		name, a, b      string
		allowed, denied []string
	}{
		{"a policy does not differ from itself", `"public"`, `"public"`, nil, nil},
		{"no-network and an allowlist of nothing decide alike", `"no-network"`, `{"network_mode":"allowlist"}`, nil, nil},
		{
			"from nothing to everything is one line",
			`"no-network"`, `"public"`,
			[]string{"everything else"},
			nil,
		},
		{
			"from everything to a list, the list itself is no difference but for what it leaves out",
			`"public"`, `{"network_mode":"allowlist","allowed_hosts":["pypi.org"]}`, nil,
			[]string{"everything else"},
		},
		{
			"a name more, a name less",
			`{"network_mode":"allowlist","allowed_hosts":["a.example","b.example"]}`,
			`{"network_mode":"allowlist","allowed_hosts":["b.example","c.example"]}`,
			[]string{"c.example"},
			[]string{"a.example"},
		},
		{
			"order, case and what a wildcard covers already are no difference",
			`{"network_mode":"allowlist","allowed_hosts":["*.a.example","b.example"]}`,
			`{"network_mode":"allowlist","allowed_hosts":["B.example.","x.a.example","*.a.example"]}`,
			nil,
			nil,
		},
		{
			"a port that is taken away leaves the port that stays",
			`{"network_mode":"allowlist","allowed_hosts":["a.example"]}`,
			`{"network_mode":"allowlist","allowed_hosts":["a.example:443"]}`,
			nil,
			[]string{"a.example"},
		},
		{
			"a carve-out is lost, though it adds a target",
			`{"network_mode":"allowlist","allowed_hosts":["*.a.example"]}`,
			`{"network_mode":"allowlist","allowed_hosts":["*.a.example"],"denied_hosts":["bad.a.example"]}`,
			nil,
			[]string{"bad.a.example"},
		},
		{
			"a protocol that is left is named",
			`{"network_mode":"allowlist","allowed_hosts":["203.0.113.10"]}`,
			`{"network_mode":"allowlist","allowed_hosts":[{"host":"203.0.113.10","protocol":"tcp"}]}`,
			nil,
			[]string{"203.0.113.10/udp/icmp"},
		},
		{
			"the ranges inside a range speak for themselves",
			`{"network_mode":"allowlist","allowed_hosts":["203.0.113.0/25","203.0.113.128/25"]}`,
			`{"network_mode":"allowlist","allowed_hosts":["203.0.113.0/24"]}`,
			nil,
			nil,
		},
		{
			"what a wider range adds beside them is the wider range",
			`{"network_mode":"allowlist","allowed_hosts":["203.0.113.0/25"]}`,
			`{"network_mode":"allowlist","allowed_hosts":["203.0.113.0/24"]}`,
			[]string{"203.0.113.0/24"},
			nil,
		},
		{
			"a whole family on a port opens every name on it",
			`"no-network"`,
			`{"network_mode":"allowlist","allowed_hosts":["0.0.0.0/0:443"]}`,
			[]string{"0.0.0.0/0:443", "every other name:443"},
			nil,
		},
		{
			"a denied name takes QUIC away everywhere, and metadata addresses with it",
			`"public"`,
			`{"network_mode":"denylist","denied_hosts":["a.example"]}`,
			nil,
			[]string{"a.example", "QUIC (443/udp) to every other address", "metadata addresses"},
		},
		{
			"private addresses of a name that stays allowed",
			`{"network_mode":"allowlist","allowed_hosts":["a.example"]}`,
			`{"network_mode":"allowlist","allowed_hosts":[{"host":"a.example","private":true}]}`,
			[]string{"a.example private"},
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := mustCompile(t, c.a), mustCompile(t, c.b)
			there, back := policy.Compare(a, b), policy.Compare(b, a)
			if !slices.Equal(there.Allowed, c.allowed) || !slices.Equal(there.Denied, c.denied) {
				t.Errorf("allowed %q denied %q, want %q %q", there.Allowed, there.Denied, c.allowed, c.denied)
			}
			sorted := func(list []string) []string { return slices.Sorted(slices.Values(list)) }
			if !slices.Equal(sorted(there.Allowed), sorted(back.Denied)) || !slices.Equal(sorted(there.Denied), sorted(back.Allowed)) {
				t.Errorf("the reverse is %+v of %+v", back, there)
			}
		})
	}
}

func TestCompareOfLongListsIsQuick(t *testing.T) {
	long := func(skip int) *policy.Compiled {
		doc := policy.Document{Mode: policy.ModeAllowlist}
		for i := range 20_000 {
			if i == skip {
				continue
			}
			for _, text := range []string{
				fmt.Sprintf("n%d.example.com", i),
				fmt.Sprintf("10.%d.%d.0/24", i/256, i%256),
			} {
				target, err := policy.ParseTarget(text)
				if err != nil {
					t.Fatal(err)
				}
				doc.Allowed = append(doc.Allowed, target)
			}
		}
		return policy.Compile(doc, policy.Options{})
	}
	diff := policy.Compare(long(-1), long(7))
	if want := []string{"n7.example.com", "10.0.7.0/24"}; !slices.Equal(diff.Denied, want) || len(diff.Allowed) > 0 {
		t.Errorf("%+v, want %q denied", diff, want)
	}
}

func mustCompile(t *testing.T, text string) *policy.Compiled {
	t.Helper()
	doc, _, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return policy.Compile(doc, policy.Options{})
}
