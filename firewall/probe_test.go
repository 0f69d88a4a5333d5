package firewall

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

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

// agentProbe probes with what capabilities it has.
func agentProbe([]string) error {
	caps, features, err := Probe()
	word := func(b *bool) string {
		if b == nil {
			return "unknown"
		}
		return fmt.Sprint(*b)
	}
	fmt.Println(word(caps.NetworkAllowlist), word(features.Egress), err == nil)
	return nil
}

func TestWhatCannotBeProbedIsUnknownAndNotFalse(t *testing.T) {
	if !namespace(t) {
		return
	}
	for _, c := range []struct{ why, keep, want string }{
		{"NET_ADMIN alone suffices, without a scratch namespace", ",+net_admin", "true true true"},
		{"without it nothing is known, and an error says so", "", "unknown unknown false"},
	} {
		cmd := exec.Command("setpriv", "--bounding-set", "-all"+c.keep, "--inh-caps", "-all"+c.keep, "/proc/self/exe")
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args[len(cmd.Args)-1] = self
		cmd.Env = append(os.Environ(), asAgent+"=probe")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.why, err, out)
		}
		if got, _, _ := strings.Cut(string(out), "\n"); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
}
