//go:build linux

package sidecar

import (
	"net/netip"
	"reflect"
	"testing"
)

func TestResolversAreReadAsTheyWereKept(t *testing.T) {
	for line, r := range map[string]resolvers{
		"nothing":             {},
		"engine":              {Engine: true},
		"upstream=192.0.2.53": {Upstreams: []string{"192.0.2.53"}},
		"engine upstream=192.0.2.53 upstream=[2001:db8::53]:53 search=corp.test engine-upstream=192.0.2.53": {
			Engine: true, Upstreams: []string{"192.0.2.53", "[2001:db8::53]:53"}, Search: []string{"corp.test"},
			EngineUpstreams: []netip.Addr{netip.MustParseAddr("192.0.2.53")},
		},
	} {
		if got := r.line(); got != line {
			t.Errorf("%+v is kept as %q, want %q", r, got, line)
		}
		if got, err := resolversOf(line); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%q is %+v, %v; want %+v", line, got, err, r)
		}
	}
	for _, line := range []string{"upstreams=192.0.2.53", "engine-upstream=here", "engine-upstream"} {
		if got, err := resolversOf(line); err == nil {
			t.Errorf("%q is %+v, want an error", line, got)
		}
	}
}
