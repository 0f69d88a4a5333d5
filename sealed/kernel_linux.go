package sealed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
	"golang.org/x/sys/unix"
)

// logGroup is the NFLOG group of the sandbox's own network namespace.
const logGroup = 1

// Kernel is the ruleset inside the sandbox, which only the engine can change.
type Kernel struct {
	rules *firewall.Kernel

	mu sync.Mutex // a swap and the openings that are added during it, in order
	in firewall.SealedInput
}

// newKernel puts the ruleset of no policy in force: everything goes to the
// listeners.
func newKernel(rules *firewall.Kernel, ports map[string]uint16) (k *Kernel, warning string, err error) {
	k = &Kernel{rules: rules, in: firewall.SealedInput{
		Ports: firewall.SealedPorts{
			Transparent4: ports[fileTransparent4], Transparent6: ports[fileTransparent6],
			DNSUDP4: ports[fileDNSUDP4], DNSUDP6: ports[fileDNSUDP6],
			DNSTCP4: ports[fileDNSTCP4], DNSTCP6: ports[fileDNSTCP6],
		},
		LogGroup: logGroup,
	}}
	err = k.apply(k.in)
	if errors.Is(err, unix.ENOENT) {
		// A kernel without nfnetlink_log refuses the packets all the same.
		k.in.LogGroup = 0
		warning = "this kernel has no nfnetlink_log: what is refused before a connection is read does not reach the log"
		err = k.apply(k.in)
	}
	if err != nil {
		return nil, "", fmt.Errorf("put the sandbox's ruleset in force: %w", err)
	}
	return k, warning, nil
}

func (k *Kernel) apply(in firewall.SealedInput) error {
	return k.rules.Apply(firewall.SealedRuleset(in))
}

// Swap puts what of the policy the kernel enforces in force: in mode allowlist,
// to which destinations a connection may be begun. On an error the old one
// stands. The openings of addresses that were handed out are asked for while no
// Attribute can come between; nil means that there are none.
func (k *Kernel) Swap(ctx context.Context, c *policy.Compiled, attributed func() []firewall.Attributed) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	in := k.in
	in.Policy, in.Attributed = c, nil
	if attributed != nil {
		in.Attributed = attributed()
	}
	if err := k.apply(in); err != nil {
		return err
	}
	k.in = in
	return nil
}

// SetStrict extends the refusal of unknown destinations to ports 80 and 443,
// from the next Swap on.
func (k *Kernel) SetStrict(strict bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.in.Strict = strict
}

// Attribute opens what an allowed name opens on addresses that are about to be
// handed out for it. It must have returned before the answer is given.
func (k *Kernel) Attribute(ctx context.Context, addrs []netip.Addr, openings []policy.Opening, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var entries []firewall.Attributed
	for _, a := range addrs {
		for _, o := range openings {
			entries = append(entries, firewall.Attributed{Addr: a, Opening: o, Timeout: ttl})
		}
	}
	if len(entries) == 0 {
		return nil
	}
	return k.rules.Change(firewall.SealedTable, firewall.SealedOpenings(entries)...)
}

// Ruleset is what is in force, as nft text.
func (k *Kernel) Ruleset() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return firewall.SealedRuleset(k.in).String()
}
