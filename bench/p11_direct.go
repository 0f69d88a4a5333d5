//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// straightOut is P11: what an address target or public mode lets out goes at .98 of
// the rate without any of our rules, and costs no processor time of our processes.
func straightOut(l *lab) (section, error) {
	s := section{columns: []string{"", "rate ÷ direct", "Gbit/s", "all CPU-s/GB", "our CPU-s/GB"}}
	policies := map[string]*policy.Compiled{
		"public mode": policy.Compile(policy.Document{Mode: policy.ModePublic}, policy.Options{}),
		"an address target": policy.Compile(policy.Document{
			Mode: policy.ModeAllowlist, Allowed: []policy.Target{{Prefix: netip.PrefixFrom(netip.MustParseAddr(firstOrigin), 32)}},
		}, policy.Options{}),
		"an address target of 10,000": policy.Compile(policy.Document{
			Mode:    policy.ModeAllowlist,
			Allowed: append(inNet(10, 10000), policy.Target{Prefix: netip.PrefixFrom(netip.MustParseAddr(firstOrigin), 32)}),
		}, policy.Options{}),
	}
	var ways []*peer
	for _, name := range []string{direct, "public mode", "an address target", "an address target of 10,000"} {
		// Our engine runs beside all of them, and would be seen at work.
		ways = append(ways, &peer{name: name, address: firstOrigin, process: l.named(ours).process})
	}
	// One stream's rate depends on which processors its two ends happen to be on:
	// many short measurements tell more than few long ones.
	often := *l
	often.size.rounds *= 3
	taken, err := often.rounds(ways, func(p *peer) (sample, error) {
		if p.name == direct {
			return l.load(p, "bulk", min(l.size.bulkBytes, 1<<30), 1)
		}
		_, k, err := enforce(l.sandbox, policies[p.name])
		if err != nil {
			return sample{}, err
		}
		one, err := l.load(p, "bulk", min(l.size.bulkBytes, 1<<30), 1)
		tables := firewall.JoinedRuleset(firewall.JoinedInput{}).Tables
		return one, errors.Join(err, k.Delete(tables...), k.Close())
	})
	if err != nil {
		return s, err
	}
	rate := func(name string) figure { return taken.of(name, sample.gbits) }
	for _, p := range ways {
		ours := taken.of(p.name, sample.proxyPerGB)
		s.rows = append(s.rows, []string{
			p.name, fmt.Sprintf("%.2f", rate(p.name).over(rate(direct))), rate(p.name).format("%.1f"),
			taken.of(p.name, sample.allPerGB).format("%.3f"), ours.format("%.3f"),
		})
		if p.name != direct {
			s.verdicts = append(s.verdicts,
				atLeast(p.name+": rate ÷ direct", rate(p.name).over(rate(direct)), .98).tells(),
				// An engine at rest has its timers.
				atMost(p.name+": our CPU-s/GB", ours.median, .005).gates())
		}
	}
	return s, nil
}
