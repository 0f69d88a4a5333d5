package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/sandbox"
)

// newDialCommand is what an engine's exec stream runs inside the sidecar.
func newDialCommand(s *streams) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:    "dial",
		Short:  "Connect standard input and output to a control socket",
		Hidden: true,
		Args:   arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.dial(cmd.Context(), socket)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", sandbox.ControlSocket, "the control socket at `PATH`")
	return cmd
}

// dial copies both ways until the engine ends the connection. The caller's end of
// input is passed on as such.
func (s *streams) dial(ctx context.Context, path string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("%w: %w", client.ErrUnreachable, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a %T is no Unix connection", conn)
	}
	sent := make(chan error, 1)
	go func() { // ends with the process: nothing interrupts a read of standard input
		_, err := io.Copy(unixConn, s.in)
		sent <- errors.Join(err, unixConn.CloseWrite())
	}()
	if _, err := io.Copy(s.out, unixConn); err != nil {
		return outputError(err)
	}
	select {
	case err := <-sent:
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("control socket: %w", err)
		}
	default:
	}
	return nil
}
