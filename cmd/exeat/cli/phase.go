package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

func newPhaseCommand(s *streams) *cobra.Command {
	var flags swapFlags
	var load string
	cmd := &cobra.Command{
		Use:   "phase SANDBOX [NAME]",
		Short: "Enter a phase of a sandbox, or list its phases",
		Long: `Enters the phase NAME: swaps to its policy, as "policy set" does. Without NAME the
phases are listed, the one in force marked with an asterisk. --load replaces the
named policies first; what is in force stays until a phase is entered.`,
		Example: `  exeat phase task-17
  exeat phase task-17 run
  exeat phase task-17 setup --for 10m --then run
  exeat phase task-17 --load task.toml agent`,
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&load, "load", "", "replace the phases by those of the phases document in `FILE` (see exeat plan)")
	return sandboxCommand(cmd, 0, 1, func(ctx context.Context, c *client.Client, args []string) error {
		if load != "" {
			if err := s.loadPhases(ctx, c, load); err != nil {
				return err
			}
		}
		if len(args) == 0 {
			phases, err := c.Phases(ctx)
			if err != nil {
				return err
			}
			return s.writePhases(phases)
		}
		var request api.EnterRequest
		request.IfGeneration, request.For, request.Then = flags.request()
		result, err := c.EnterPhase(ctx, args[0], request)
		if err != nil {
			return err
		}
		return s.writeSwap(result)
	})
}

// loadPhases replaces a sandbox's phases by those of a document.
func (s *streams) loadPhases(ctx context.Context, c *client.Client, file string) error {
	input, err := s.planInput([]string{file}, planFlags{})
	if err != nil {
		return err
	}
	plan, warnings, err := policy.ReadPlan(input)
	if err != nil {
		return invalid(file, err)
	}
	s.warn(file, warnings)
	var phases []api.Phase
	for _, p := range plan.Phases {
		phases = append(phases, api.Phase{Name: p.Name, Policy: p.Policy, Source: p.Source})
	}
	_, err = c.SetPhases(ctx, phases)
	return err
}

func (s *streams) writePhases(phases api.Phases) error {
	if s.format == formatJSON {
		return s.json(phases)
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, p := range phases.Phases {
		mark := " "
		if p.Name == phases.Current {
			mark = "*"
		}
		document, err := p.Policy.MarshalJSON()
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%s %s\t%s\n", mark, p.Name, document)
	}
	return outputError(table.Flush())
}
