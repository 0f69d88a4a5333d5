package dnsfilter

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/exeat/exeat/policy"
)

// budgetWindow is the time that a Budget is for.
const budgetWindow = time.Minute

// maxBudgetZones bounds how many registrable domains are counted at once; beyond it
// new ones are over budget, so that many domains are no way round.
const maxBudgetZones = 4096

// budget counts the questions below allowed wildcards.
type budget struct {
	limit Budget
	seed  maphash.Seed

	mu    sync.Mutex
	zones map[string]*zoneCount
}

type zoneCount struct {
	began time.Time
	seen  map[uint64]struct{}
	bytes int
}

func newBudget(limit Budget) *budget {
	return &budget{limit: limit, seed: maphash.MakeSeed(), zones: make(map[string]*zoneCount)}
}

// spend says whether k, allowed by d, may be asked upstream. Only names that a
// wildcard allows cost anything, and a repeat within the minute costs nothing.
func (b *budget) spend(k key, d policy.Decision, now time.Time) bool {
	if !strings.HasPrefix(d.Rule, "*.") {
		return true
	}
	base, err := publicsuffix.EffectiveTLDPlusOne(k.name)
	if err != nil {
		base = k.name // a public suffix itself
	}
	sum := maphash.Comparable(b.seed, k)

	b.mu.Lock()
	defer b.mu.Unlock()
	zone := b.zones[base]
	if zone != nil && now.Sub(zone.began) >= budgetWindow {
		zone = nil
	}
	if zone == nil {
		if len(b.zones) >= maxBudgetZones && !b.makeRoomLocked(now) {
			return false
		}
		zone = &zoneCount{began: now, seen: make(map[uint64]struct{})}
		b.zones[base] = zone
	}
	if _, repeat := zone.seen[sum]; repeat {
		return true
	}
	if len(zone.seen) >= b.limit.Names || zone.bytes+len(k.name) > b.limit.Bytes {
		return false
	}
	zone.seen[sum] = struct{}{}
	zone.bytes += len(k.name)
	return true
}

// makeRoomLocked forgets zones whose minute is over, and says whether there were any.
func (b *budget) makeRoomLocked(now time.Time) bool {
	before := len(b.zones)
	for base, zone := range b.zones {
		if now.Sub(zone.began) >= budgetWindow {
			delete(b.zones, base)
		}
	}
	return len(b.zones) < before
}
