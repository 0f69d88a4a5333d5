package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
)

// Dial connects in and out to a Unix socket until its other side ends the
// connection. The end of in is passed on as such. A read of in that is under way
// then goes on: nothing interrupts it but the end of the process.
func Dial(ctx context.Context, socket string, in io.Reader, out io.Writer) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a %T is no Unix connection", conn)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(unixConn, in)
		sent <- errors.Join(err, unixConn.CloseWrite())
	}()
	_, received := io.Copy(out, unixConn)
	if received != nil {
		return fmt.Errorf("control socket: %w", received)
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
