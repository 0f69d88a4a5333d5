package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
)

func newStatusCommand(s *streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status SANDBOX",
		Short:   "Say how a sandbox stands: policy, phase, health",
		Long:    "Prints the state of a sandbox. Exit status 1 where it is not ready: then everything is denied.",
		Example: "  exeat status task-17\n  exeat status --socket /run/exeat.sock -o json",
	}
	return guardedCommand(cmd, 0, 0, func(ctx context.Context, g guarded, _ []string) error {
		status, err := g.Status(ctx)
		if err != nil {
			return err
		}
		status.Health = append(status.Health, g.health()...)
		if err := s.writeStatus(status); err != nil {
			return err
		}
		if !status.Ready {
			return errNo()
		}
		return nil
	})
}

func (s *streams) writeStatus(st api.Status) error {
	if s.format == formatJSON {
		return s.json(st)
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(table, name+"\t"+format+"\n", args...) }
	row("name", "%s", dash(st.Name))
	row("shape", "%s", st.Shape)
	row("version", "%s", st.Version)
	row("ready", "%s", yesNo(st.Ready))
	row("policy", "%s, generation %d, since %s", st.Mode, st.Generation, st.Since.Local().Format(time.DateTime))
	row("phase", "%s", dash(st.Phase))
	if st.Lease != nil {
		row("lease", "ends %s", describeLease(*st.Lease))
	}
	row("flows", "%d", st.Flows)
	if st.OwnTraffic != "" {
		row("own traffic", "%s", st.OwnTraffic)
	}
	for _, h := range st.Health {
		state := "ok"
		if !h.OK {
			state = "FAILED"
		}
		if h.Message != "" {
			state += ": " + h.Message
		}
		row(h.Part, "%s", state)
	}
	return outputError(table.Flush())
}

func describeLease(l api.Lease) string {
	then := "no-network"
	switch {
	case l.Then.Phase != "":
		then = "phase " + l.Then.Phase
	case l.Then.Policy != nil:
		then = string(l.Then.Policy.Mode)
	}
	return fmt.Sprintf("in %s, then %s", time.Until(l.Expires).Round(time.Second), then)
}
