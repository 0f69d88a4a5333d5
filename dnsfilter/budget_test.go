package dnsfilter

import (
	"fmt"
	"testing"
	"time"

	"github.com/exeat/exeat/policy"
)

func TestManyDomainsAreNoWayRoundTheBudget(t *testing.T) {
	b := newBudget(Budget{Names: 10, Bytes: 1000})
	wide := policy.Decision{Verdict: policy.Allow, Rule: "*.test"}
	now := time.Unix(1000, 0)
	for i := range maxBudgetZones {
		if !b.spend(key{fmt.Sprintf("a.zone%d.test", i), 1}, wide, now) {
			t.Fatalf("zone %d is over budget", i)
		}
	}
	if b.spend(key{"a.more.test", 1}, wide, now) {
		t.Error("one domain too many was counted")
	}
	if !b.spend(key{"b.zone7.test", 1}, wide, now) {
		t.Error("a domain that is counted lost its budget")
	}
	if !b.spend(key{"exact.more.test", 1}, policy.Decision{Verdict: policy.Allow, Rule: "exact.more.test"}, now) {
		t.Error("an exact name was charged")
	}
	if later := now.Add(budgetWindow); !b.spend(key{"a.more.test", 1}, wide, later) {
		t.Error("after the minute there is still no room")
	}
}
