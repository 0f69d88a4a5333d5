//go:build image

package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
)

func newProbeCommand(s *streams) *cobra.Command {
	var request api.ProbeRequest
	var strict bool
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Try the known ways round the enforcement",
		Long: `Lets the engine probe its rules now, as it does by itself from time to time. What
only the sandbox's own processes can try is tried by "exeat probe", in there.

Exit status: 0 no leak; 1 a leak, or with --strict something not proven.`,
	}
	f := cmd.Flags()
	f.StringArrayVar(&request.Cases, "case", nil, "try the case `NUMBER` only (repeatable)")
	f.BoolVar(&request.Safe, "safe", false, "leave out what could disturb the sandbox")
	f.BoolVar(&strict, "strict", false, "take what is not proven for a failure")
	return sandboxCommand(cmd, 0, 0, func(ctx context.Context, c *client.Client, _ []string) error {
		report, err := c.Probe(ctx, request)
		if err != nil {
			return err
		}
		if err := s.writeProbed(report); err != nil {
			return err
		}
		if report.Leaks > 0 || strict && report.NotProven > 0 {
			return errNo()
		}
		return nil
	})
}

func (s *streams) writeProbed(report api.ProbeReport) error {
	if s.format == formatJSON {
		return s.json(report)
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CASE\tVERDICT\tATTACK\tEXPECTED\tSEEN")
	for _, c := range report.Cases {
		seen := c.Seen
		if c.Why != "" {
			seen += ": " + c.Why
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.ID, c.Verdict, c.Attack, c.Expected, seen)
	}
	if err := table.Flush(); err != nil {
		return outputError(err)
	}
	return s.printf("%d held, %d leaks, %d not proven\n", report.Held, report.Leaks, report.NotProven)
}
