package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/exeat/exeat/control/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answering is a client of something that answers each connection with bytes.
func answering(t *testing.T, bytes string) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "exeat")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				done <- nil
				return
			}
			if _, err := conn.Read(make([]byte, 4096)); err != nil {
				done <- err
				return
			}
			if _, err := io.WriteString(conn, bytes); err != nil {
				done <- err
				return
			}
			if err := conn.Close(); err != nil {
				done <- err
				return
			}
		}
	}()
	c := New(path)
	t.Cleanup(func() {
		c.Close()
		if err := errors.Join(ln.Close(), <-done, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestWhatIsNoEngine(t *testing.T) {
	tests := map[string]struct {
		answer      string
		unreachable bool
		code        api.Code
	}{
		"nothing":             {"", true, ""},
		"no HTTP":             {"SSH-2.0-x\r\n", true, ""},
		"half an answer":      {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", true, ""},
		"another web server":  {"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", false, api.CodeInternal},
		"an error of ours":    {"HTTP/1.1 409 Conflict\r\n\r\n{\"status\":409,\"code\":\"no-lease\",\"message\":\"m\"}", false, api.CodeNoLease},
		"an answer not of us": {"HTTP/1.1 200 OK\r\n\r\n<html>", false, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := answering(t, tt.answer).Status(context.Background())
			if err == nil || errors.Is(err, ErrUnreachable) != tt.unreachable {
				t.Errorf("error %v; unreachable: want %v", err, tt.unreachable)
			}
			var refused *api.Error
			if errors.As(err, &refused) != (tt.code != "") || refused != nil && refused.Code != tt.code {
				t.Errorf("error %v, want the code %q", err, tt.code)
			}
		})
	}
}

func TestEventsThatEndAmiss(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
	line := `{"id":1,"time":"2026-03-01T12:00:00Z","kind":"lifecycle","member_of_the_future":1}` + "\n"
	tests := map[string]struct {
		answer string
		events int
		amiss  bool
	}{
		"to the end":        {head + "\r\n" + line + "\n" + line, 2, false},
		"cut in the middle": {head + "Content-Length: 1000\r\n\r\n" + line, 1, true},
		"no JSON":           {head + "\r\n" + line + "nonsense\n", 1, true},
		"a line too long":   {head + "\r\n" + strings.Repeat("a", maxLine+1), 0, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var events int
			var last error
			for _, err := range answering(t, tt.answer).Events(context.Background(), api.EventQuery{}) {
				if last = err; err == nil {
					events++
				}
			}
			if events != tt.events || (last != nil) != tt.amiss {
				t.Errorf("%d events, then %v", events, last)
			}
		})
	}
}

func TestEventsEndWithTheContext(t *testing.T) {
	near, far := net.Pipe()
	c := NewDialer("a pipe", func(context.Context) (net.Conn, error) { return near, nil })
	defer c.Close()
	go func() {
		if _, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
			// the header, and no event for ever
			if _, err := io.WriteString(far, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
				t.Error(err)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	var last error
	for _, err := range c.Events(ctx, api.EventQuery{Follow: true}) {
		last = err
	}
	if !errors.Is(last, context.DeadlineExceeded) || errors.Is(last, ErrUnreachable) {
		t.Errorf("ended with %v", last)
	}
	if err := far.Close(); err != nil {
		t.Error(err)
	}
}

// processConn is the stream of a process, as an engine's exec gives it.
type processConn struct {
	net.Conn // nil: what is not overridden is not used
	in       io.WriteCloser
	out      io.ReadCloser
	cmd      *exec.Cmd
}

func (p processConn) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p processConn) Write(b []byte) (int, error) { return p.in.Write(b) }
func (p processConn) Close() error                { return errors.Join(p.in.Close(), p.cmd.Wait()) }

func TestAnExecStreamWillDo(t *testing.T) {
	answer := `HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"ok":true}\n`
	c := NewDialer("a process", func(context.Context) (net.Conn, error) {
		cmd := exec.Command("/bin/sh", "-c", `read -r _; printf '`+answer+`'; cat >/dev/null`)
		in, inErr := cmd.StdinPipe()
		out, outErr := cmd.StdoutPipe()
		if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
			return nil, err
		}
		return processConn{in: in, out: out, cmd: cmd}, nil
	})
	defer c.Close()
	if err := c.Health(context.Background()); err != nil {
		t.Error(err)
	}
}
