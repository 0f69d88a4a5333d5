package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/sandbox/inside"
)

// newDialCommand is what an engine's exec stream runs inside a container.
func newDialCommand(s *streams) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:    "dial",
		Short:  "Connect standard input and output to a control socket",
		Hidden: true,
		Args:   arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := inside.Dial(cmd.Context(), socket, s.in, s.out); err != nil {
				return fmt.Errorf("%w: %w", client.ErrUnreachable, err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&socket, "socket", inside.ControlSocket, "the control socket at `PATH`")
	return cmd
}
