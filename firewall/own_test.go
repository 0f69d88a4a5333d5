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
	root := sh(t, "grep '^0::' /proc/self/cgroup") == "0::/\n"
	if own, err := ProbeCgroup(); errors.Is(err, ErrNoCgroup) != root {
		t.Fatalf("%+v, %v; in the root group: %v", own, err, root)
	}
}
