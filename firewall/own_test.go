package firewall

import (
	"errors"
	"testing"
)

func TestOurControlGroupIsFoundAtItsLevel(t *testing.T) {
	if !grouped(t) {
		return
	}
	sh(t, "ip link set lo up")
	own, err := ProbeCgroup()
	if err != nil {
		t.Fatal(err)
	}
	if own.Cgroup <= 1 {
		t.Errorf("id %d", own.Cgroup)
	}
	if left := sh(t, "nft list ruleset"); left != "" {
		t.Errorf("the probe left:\n%s", left)
	}
}

func TestTheRootControlGroupIsRefusedBecauseEverybodyIsInIt(t *testing.T) {
	if !namespace(t) {
		return
	}
	sh(t, "ip link set lo up")
	if line := sh(t, "grep '^0::' /proc/self/cgroup"); line != "0::/\n" {
		t.Skipf("the tests run in control group %s", line)
	}
	if own, err := ProbeCgroup(); !errors.Is(err, ErrNoCgroup) {
		t.Fatalf("%+v, %v; want ErrNoCgroup", own, err)
	}
}
