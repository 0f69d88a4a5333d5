package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/sandbox/inside"
)

// ControlSocket is where exeatd listens inside its container.
const ControlSocket = inside.ControlSocket

// Client gives a client of a sidecar, by the engine's exec stream: it works
// wherever the engine's command line does.
func (e *Engine) Client(container string) *client.Client {
	return client.NewDialer("container "+container, func(ctx context.Context) (net.Conn, error) {
		return e.dial(ctx, container, "/exeat", "dial", "--socket", ControlSocket)
	})
}

// dial runs a command in a container and gives its standard streams as a
// connection. It lives on after ctx: Close ends it.
func (e *Engine) dial(ctx context.Context, container string, command ...string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := e.Command(live, append([]string{"exec", "-i", container}, command...)...)
	apart(cmd)
	conn := &execConn{where: container, engine: e.name, cmd: cmd, cancel: cancel, ended: make(chan struct{})}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, errors.Join(err, theirIn.Close(), ourOut.Close())
	}
	conn.in, conn.out = ourIn, ourOut
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirIn, theirOut, &conn.stderr
	err = cmd.Start()
	closeErr := errors.Join(theirIn.Close(), theirOut.Close())
	if err = errors.Join(err, closeErr); err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("%s exec: %w", e.name, err), ourIn.Close(), ourOut.Close())
	}
	go conn.reap()
	return conn, nil
}

// execConn is the standard input and output of a command as a connection.
type execConn struct {
	where, engine string
	in, out       *os.File
	cmd           *exec.Cmd
	cancel        context.CancelFunc
	close         sync.Once

	ended  chan struct{} // closed once the command has ended
	stderr bytes.Buffer  // read only after that
	status error
}

// reap waits for the command's end; Close waits for reap.
func (c *execConn) reap() {
	c.status = c.cmd.Wait()
	close(c.ended)
}

// Read reads what the command writes. A command that failed says why.
func (c *execConn) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	select {
	case <-c.ended:
	case <-time.After(grace):
		return n, err
	}
	if c.status != nil {
		if said := complaint(c.stderr.String()); said != "" {
			return n, fmt.Errorf("%s exec: %s", c.engine, said)
		}
	}
	return n, err
}

// Write writes to the command's standard input.
func (c *execConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// Close ends the command and waits for it.
func (c *execConn) Close() error {
	var err error
	c.close.Do(func() {
		err = c.out.Close() // by which the command ends by itself
		select {
		case <-c.ended:
		case <-time.After(grace):
		}
		c.cancel()
		<-c.ended
		err = errors.Join(err, c.in.Close())
	})
	return err
}

// LocalAddr and RemoteAddr name the stream; it has no address.
func (c *execConn) LocalAddr() net.Addr  { return execAddr(c.engine) }
func (c *execConn) RemoteAddr() net.Addr { return execAddr(c.where) }

func (c *execConn) SetDeadline(t time.Time) error {
	return errors.Join(c.in.SetReadDeadline(t), c.out.SetWriteDeadline(t))
}
func (c *execConn) SetReadDeadline(t time.Time) error  { return c.in.SetReadDeadline(t) }
func (c *execConn) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }

// execAddr is the name of a container as an address.
type execAddr string

func (a execAddr) Network() string { return "exec" }
func (a execAddr) String() string  { return strings.TrimSpace(string(a)) }
