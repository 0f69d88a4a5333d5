//go:build linux

package proxy

import (
	"net/netip"
	"testing"

	"github.com/exeat/exeat/policy"
)

// A flow to loopback that a narrow target opened does not live by a wide one, by
// which it could not be opened.
func TestAFlowToLoopbackDoesNotLiveByAWideTarget(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	flow := FlowInfo{
		Addr: loopback, Port: 9, Protocol: policy.TCP,
		Request: policy.Request{Kind: policy.KindConnection, Addr: loopback, Port: 9, Protocol: policy.TCP},
	}
	for target, want := range map[string]policy.Verdict{
		"127.0.0.1:9": policy.Allow, "127.0.0.0/8": policy.Allow, "0.0.0.0/0": policy.Deny, "127.0.0.1:10": policy.Deny,
	} {
		var d policy.Document
		if err := d.UnmarshalJSON([]byte(`{"network_mode":"allowlist","allowed_hosts":["` + target + `"]}`)); err != nil {
			t.Fatal(err)
		}
		if got := flow.decide(policy.Compile(d, policy.Options{})); got.Verdict != want {
			t.Errorf("%s: %+v, want %s", target, got, want)
		}
	}
}
