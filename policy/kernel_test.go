package policy

import (
	"net/netip"
	"slices"
	"testing"
)

func TestWhatDiffersIsWhatStandsBetweenTheLikeEnds(t *testing.T) {
	for _, c := range []struct {
		about      string
		was, is    []string
		gone, come []string
	}{
		{about: "nothing, of equal lists", was: []string{"a.test", "192.0.2.1"}, is: []string{"a.test", "192.0.2.1"}},
		{about: "nothing, of empty lists"},
		{about: "one more at the end", was: []string{"a.test"}, is: []string{"a.test", "b.test"}, come: []string{"b.test"}},
		{about: "one more within", was: []string{"a.test", "c.test"}, is: []string{"a.test", "b.test", "c.test"}, come: []string{"b.test"}},
		{about: "one of two alike fewer", was: []string{"a.test", "a.test"}, is: []string{"a.test"}, gone: []string{"a.test"}},
		{about: "another port", was: []string{"a.test:1", "b.test"}, is: []string{"a.test:2", "b.test"}, gone: []string{"a.test:1"}, come: []string{"a.test:2"}},
		{about: "all", was: []string{"a.test"}, is: []string{"192.0.2.1"}, gone: []string{"a.test"}, come: []string{"192.0.2.1"}},
	} {
		t.Run(c.about, func(t *testing.T) {
			compile := func(targets []string) *Compiled {
				return Compile(Document{Mode: ModeAllowlist, Allowed: parsed(t, targets)}, Options{})
			}
			allowed, denied := Differing(compile(c.was), compile(c.is))
			if !slices.Equal(allowed.Gone, parsed(t, c.gone)) || !slices.Equal(allowed.Come, parsed(t, c.come)) {
				t.Errorf("gone %v, come %v; want %v, %v", allowed.Gone, allowed.Come, c.gone, c.come)
			}
			if len(denied.Gone)+len(denied.Come) > 0 {
				t.Errorf("of the denied: %v", denied)
			}
		})
	}
}

func TestOneAddressIsTheRulesOfItAlone(t *testing.T) {
	c := Compile(Document{
		Mode:    ModeAllowlist,
		Allowed: parsed(t, []string{"192.0.2.1:443", "192.0.2.1:80", "192.0.2.0/24", "192.0.2.2", "a.test"}),
		Denied:  parsed(t, []string{"192.0.2.1:22"}),
	}, Options{})
	addr := netip.MustParseAddr("192.0.2.1")
	single := netip.PrefixFrom(addr, 32)
	want := []AddressRule{{Prefix: single, Port: 80, TCP: true, UDP: true}, {Prefix: single, Port: 443, TCP: true, UDP: true}}
	if got := c.AllowedAddress(addr); !slices.Equal(got, want) {
		t.Errorf("allowed: %v, want %v", got, want)
	}
	for _, none := range []netip.Addr{{}, netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::1")} {
		if got := c.AllowedAddress(none); got != nil {
			t.Errorf("%v: %v", none, got)
		}
	}
}

func parsed(t *testing.T, texts []string) []Target {
	t.Helper()
	var targets []Target
	for _, s := range texts {
		target, err := ParseTarget(s)
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets, target)
	}
	return targets
}
