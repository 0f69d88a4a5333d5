package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
)

func newFlowsCommand(s *streams) *cobra.Command {
	var cut []string
	cmd := &cobra.Command{
		Use:     "flows SANDBOX",
		Short:   "List the open flows of a sandbox, or cut some",
		Long:    "Lists the flows that are open, oldest first. --cut resets one instead; exit status 1 where it is not there.",
		Example: "  exeat flows task-17\n  exeat flows task-17 --cut 42",
	}
	cmd.Flags().StringArrayVar(&cut, "cut", nil, "reset the flow `ID` (repeatable)")
	return sandboxCommand(cmd, 0, 0, func(ctx context.Context, c *client.Client, _ []string) error {
		if len(cut) > 0 {
			var faults error
			for _, id := range cut {
				faults = errors.Join(faults, c.CutFlow(ctx, id))
			}
			return faults
		}
		flows, err := c.Flows(ctx)
		if err != nil {
			return err
		}
		return s.writeFlows(flows)
	})
}

func (s *streams) writeFlows(flows []api.Flow) error {
	if s.format == formatJSON {
		return s.json(flows)
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tNAME\tADDRESS\tCHANNEL\tRULE\tOUT\tIN\tAGE")
	for _, f := range flows {
		addr := "-"
		if f.Addr.IsValid() {
			addr = fmt.Sprintf("%s/%s", f.Addr, f.Protocol)
			if f.Port != 0 {
				addr = fmt.Sprintf("[%s]:%d/%s", f.Addr, f.Port, f.Protocol)
				if f.Addr.Is4() {
					addr = fmt.Sprintf("%s:%d/%s", f.Addr, f.Port, f.Protocol)
				}
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", f.ID, dash(f.Name), addr, dash(string(f.Channel)),
			dash(f.Rule), f.BytesOut, f.BytesIn, time.Since(f.Opened).Round(time.Second))
	}
	return outputError(table.Flush())
}
