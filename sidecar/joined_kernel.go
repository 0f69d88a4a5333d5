//go:build linux

package sidecar

import (
	"context"
	"net/netip"
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
	k.told(name, addrs, ttl-attribution.Grace)
	return nil
}
