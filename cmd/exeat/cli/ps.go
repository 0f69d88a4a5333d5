//go:build !image

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
	"github.com/exeat/exeat/sandbox"
)

// psTimeout is how long `ps` waits for each sandbox.
const psTimeout = 2 * time.Second

// psRow is one sandbox of `ps`. Error says why there is no status.
// It has a socket, or an engine and the sidecar's container.
type psRow struct {
	Name      string      `json:"name"`
	Socket    string      `json:"socket,omitempty"`
	Engine    string      `json:"engine,omitempty"`
	Container string      `json:"container,omitempty"`
	Joined    []string    `json:"joined,omitempty"`
	Status    *api.Status `json:"status,omitempty"`
	Error     string      `json:"error,omitempty"`
}

func newPsCommand(s *streams) *cobra.Command {
	var flag engineFlag
	cmd := &cobra.Command{
		Use:     "ps",
		Short:   "List the sandboxes that are running",
		Long:    "Lists the sandboxes that run here and, where a container engine answers, its sidecars.",
		Example: "  exeat ps\n  exeat ps --engine podman -o json",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := localNames()
			if err != nil {
				return fmt.Errorf("list the control sockets: %w", err)
			}
			rows := []psRow{}
			for _, name := range names {
				if row, alive := psOf(cmd.Context(), name); alive {
					rows = append(rows, row)
				}
			}
			containers, err := s.psContainers(cmd.Context(), flag)
			if err != nil {
				return err
			}
			return s.writePs(append(rows, containers...))
		},
	}
	flag.register(cmd)
	return cmd
}

// psContainers asks the sidecars of the container engine. That none answers is a
// failure only where one was named.
func (s *streams) psContainers(ctx context.Context, flag engineFlag) ([]psRow, error) {
	engine, err := flag.find(ctx)
	if errors.Is(err, sandbox.ErrNoEngine) && !flag.named() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	cars, err := engine.Sidecars(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([]psRow, 0, len(cars))
	for _, car := range cars {
		row := psRow{Name: car.Title(), Engine: engine.Name(), Container: car.ID}
		for _, c := range car.Joined {
			row.Joined = append(row.Joined, c.Name)
		}
		warnOfFindings(s.err, car)
		rows = append(rows, askPs(ctx, engine.Client(car.ID), row))
	}
	return rows, nil
}

// askPs completes the row of a sidecar.
func askPs(ctx context.Context, c *client.Client, row psRow) psRow {
	ctx, cancel := context.WithTimeout(ctx, psTimeout)
	defer cancel()
	defer c.Close()
	if status, err := c.Status(ctx); err != nil {
		row.Error = err.Error()
	} else {
		row.Status = &status
	}
	return row
}

// psOf asks one sandbox. One that nobody serves any more is not alive.
func psOf(ctx context.Context, name string) (row psRow, alive bool) {
	ctx, cancel := context.WithTimeout(ctx, psTimeout)
	defer cancel()
	row = psRow{Name: name, Socket: socketPath(name)}
	c := localClient(row.Socket)
	defer c.Close()
	status, err := c.Status(ctx)
	if err != nil {
		row.Error = err.Error()
		return row, !errors.Is(err, client.ErrUnreachable) || ctx.Err() != nil
	}
	row.Status = &status
	return row, true
}

func (s *streams) writePs(rows []psRow) error {
	if s.format == formatJSON {
		return s.json(rows)
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tSHAPE\tREADY\tPHASE\tMODE\tGENERATION\tFLOWS\tUP")
	for _, r := range rows {
		if r.Status == nil {
			fmt.Fprintf(table, "%s\t?\tno\t\t\t\t\t%s\n", r.Name, r.Error)
			continue
		}
		st := r.Status
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", r.Name, st.Shape, yesNo(st.Ready), dash(st.Phase),
			st.Mode, st.Generation, st.Flows, time.Since(st.Started).Round(time.Second))
	}
	return outputError(table.Flush())
}
