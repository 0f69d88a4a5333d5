package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

// swapFlags are what every swap takes.
type swapFlags struct {
	ifGeneration uint64
	lease        time.Duration
	then         string
}

func (f *swapFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Uint64Var(&f.ifGeneration, "if-generation", 0, "swap only if generation `N` is in force")
	flags.DurationVar(&f.lease, "for", 0, "a lease: after `DURATION` without renewal --then takes over")
	flags.StringVar(&f.then, "then", "", "what follows the lease: a `PHASE`, public or no-network (default no-network)")
}

// request gives the members of a swap's body.
func (f *swapFlags) request() (ifGeneration *uint64, lease api.Duration, then *api.Then) {
	if f.ifGeneration != 0 {
		ifGeneration = &f.ifGeneration
	}
	switch {
	case f.then == "":
	case api.IsPolicyWord(f.then):
		then = &api.Then{Policy: &policy.Document{Mode: policy.Mode(f.then)}}
	default:
		then = &api.Then{Phase: f.then}
	}
	return ifGeneration, api.Duration(f.lease), then
}

func newPolicySetCommand(s *streams) *cobra.Command {
	var flags swapFlags
	var phase string
	cmd := &cobra.Command{
		Use:   "set SANDBOX FILE|-",
		Short: "Swap the policy of a sandbox",
		Long: `Swaps the policy, whole or not at all. When it returns with status 0 the new
policy is in force, and no byte of a flow that it forbids leaves or enters the
sandbox any more; flows that it allows are not touched.

Exit status: 1 where the swap was refused (the old policy stands), 3 where the
sandbox does not answer.`,
		Example: `  exeat policy set task-17 run.json
  echo '"no-network"' | exeat policy set task-17 -
  exeat policy set task-17 setup.json --for 10m --then run --if-generation 3`,
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&phase, "phase", "", "call what is in force from now on phase `NAME`")
	return sandboxCommand(cmd, 1, 1, func(ctx context.Context, c *client.Client, args []string) error {
		document, err := s.readPolicy(args[0])
		if err != nil {
			return err
		}
		request := api.SwapRequest{Policy: &document, Phase: phase}
		request.IfGeneration, request.For, request.Then = flags.request()
		result, err := c.Swap(ctx, request)
		if err != nil {
			return err
		}
		return s.writeSwap(result)
	})
}

func (s *streams) writeSwap(r api.SwapResult) error {
	if s.format == formatJSON {
		return s.json(r)
	}
	s.warn("policy", r.Warnings)
	line := ""
	if r.Phase != "" {
		line = "phase " + r.Phase + ", "
	}
	if err := s.printf("%sgeneration %d in force after %s, %d flows cut\n", line, r.Generation,
		time.Duration(r.TookUS)*time.Microsecond, r.Revoked); err != nil {
		return err
	}
	if r.Lease != nil {
		return s.printf("lease ends %s\n", describeLease(*r.Lease))
	}
	return nil
}
