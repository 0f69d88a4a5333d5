package cli

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

func newLearnCommand(s *streams) *cobra.Command {
	var denied bool
	cmd := &cobra.Command{
		Use:   "learn SANDBOX",
		Short: "Propose the allowlist that the observed traffic needs",
		Long: `Prints, as a policy document, the allowlist that what a sandbox was allowed to
reach would have needed: names where there were any, with their ports. Run a phase
under "public" (or with a floor), read the proposal, then enforce it. Names that
were only looked up are left out: nothing was sent to them.`,
		Example: `  exeat learn task-17 > run.json
  exeat learn task-17 --denied | exeat policy diff run.json -`,
	}
	cmd.Flags().BoolVar(&denied, "denied", false, "propose what was denied, too")
	return sandboxCommand(cmd, 0, 0, func(ctx context.Context, c *client.Client, _ []string) error {
		summary, err := c.Summary(ctx)
		if err != nil {
			return err
		}
		proposal := learn(summary.Counts, denied)
		if s.format == formatJSON {
			return s.json(proposal)
		}
		return s.writeDocument(proposal)
	})
}

// learn makes the allowlist of what was counted.
func learn(counts []audit.Count, denied bool) policy.Document {
	seen := map[policy.Target]bool{}
	for _, c := range counts {
		if c.Error != "" || c.Verdict != policy.Allow && !denied {
			continue
		}
		if t, ok := targetOf(c); ok {
			seen[t] = true
		}
	}
	doc := policy.Document{Mode: policy.ModeAllowlist}
	for t := range seen {
		doc.Allowed = append(doc.Allowed, t)
	}
	slices.SortFunc(doc.Allowed, func(a, b policy.Target) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Prefix.Addr().Compare(b.Prefix.Addr()),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
	})
	return doc
}

// targetOf is the target that a counted request needs; false where it needs
// none of its own.
func targetOf(c audit.Count) (policy.Target, bool) {
	t := policy.Target{Port: c.Port}
	if c.Protocol == policy.UDP {
		t.Proto = policy.ProtocolUDP
	}
	switch {
	case c.Name != "" && c.Port == 0:
		return t, false // a question alone
	case c.Name != "":
		host, err := policy.ParseHost(c.Name)
		if err != nil || host.Name == "" {
			return t, false // bytes that only looked like a name
		}
		t.Name = host.Name
		return t, true
	case c.Addr.IsValid():
		t.Prefix = netip.PrefixFrom(c.Addr, c.Addr.BitLen())
		if c.Protocol == policy.TCP {
			t.Proto = policy.ProtocolTCP // left out, it would open UDP and ICMP too
		}
		return t, true
	}
	return t, false
}
