package firewall

import "testing"

func TestProbingFindsWhatTheKernelHoldsAndLeavesNothingBehind(t *testing.T) {
	if !namespace(t) {
		return
	}
	caps, features, err := Probe()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*bool{"allowlist": caps.NetworkAllowlist, "icmp": caps.ICMP} {
		if b == nil || !*b {
			t.Errorf("%s: %v, want true", name, b)
		}
	}
	for name, b := range map[string]*bool{"cgroup": features.Cgroup, "egress": features.Egress, "any link": features.AnyLink} {
		if b == nil {
			t.Errorf("%s could not be probed", name)
			continue
		}
		t.Logf("%s: %v", name, *b)
	}
	if left := sh(t, "nft list ruleset"); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

func TestACheckedRulesetIsNotPutInForce(t *testing.T) {
	if !namespace(t) {
		return
	}
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := k.check(JoinedRuleset(basicInput(compiled(t, `"no-network"`)))); err != nil {
		t.Fatal(err)
	}
	if left := sh(t, "nft list ruleset"); left != "" {
		t.Errorf("left:\n%s", left)
	}
	bad := probeRules(Hook{Type: "filter", Point: Output}, NewRule(InSet(Set{Name: "nowhere", Fields: []Field{FieldIPv4}}, 0)))
	if err := k.check(bad); err == nil {
		t.Error("a rule that uses a set which is not there was accepted")
	}
}
