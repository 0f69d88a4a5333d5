//go:build linux

package sidecar

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// joinedKernel is the joined ruleset as a swap needs it.
type joinedKernel struct {
	fw *firewall.Firewall
	// names are set before the first swap; told passes an attribution on to the
	// keeper, for the worker after this one.
	names *attribution.Table
	told  func(name string, addrs []netip.Addr, ttl time.Duration)
	// failed hears of flows that could not be ended though the rules hold.
	failed func(error)

	mu sync.Mutex
	// when says when the keeper was last told of an attribution: names are asked
	// for far more often than their addresses change.
	when map[string]time.Time
}

// The keeper is told again after tellAgain, in which its memory, which keeps an
// attribution for its grace, has not forgotten; maxTold bounds when.
const (
	tellAgain = attribution.Grace / 4
	maxTold   = 50_000
)

// news says whether the keeper must be told of an attribution.
func (k *joinedKernel) news(name string, addrs []netip.Addr, now time.Time) bool {
	key := []byte(name)
	for _, a := range addrs {
		key = a.AppendTo(append(key, ' '))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Sub(k.when[string(key)]) < tellAgain {
		return false
	}
	if k.when == nil || len(k.when) >= maxTold {
		k.when = map[string]time.Time{}
	}
	k.when[string(key)] = now
	return true
}

// Swap implements Kernel.
func (k *joinedKernel) Swap(_ context.Context, c *policy.Compiled, _ []firewall.Attributed) (revoked int, err error) {
	swap, err := k.fw.SwapPolicy(c, k.names.All())
	if err != nil && swap.Took == 0 {
		return 0, err
	}
	if err != nil {
		k.failed(err)
	}
	return len(swap.Revoked), nil
}

// Attribute implements Kernel.
func (k *joinedKernel) Attribute(_ context.Context, name string, addrs []netip.Addr, _ []policy.Opening, ttl time.Duration) error {
	// The firewall adds the grace itself.
	if err := k.fw.AddAttributed(name, addrs, ttl-attribution.Grace); err != nil {
		return err
	}
	if k.news(name, addrs, time.Now()) {
		k.told(name, addrs, ttl-attribution.Grace)
	}
	return nil
}
