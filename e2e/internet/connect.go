//go:build linux

package internet

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"

	"golang.org/x/sync/errgroup"
)

// ConnectPath is the Path of a Visit that asked the CONNECT proxy for a tunnel;
// its Host is the authority that was asked for.
const ConnectPath = "CONNECT"

// tunnel serves one client of the world's HTTP proxy, which knows CONNECT alone.
func (w *World) tunnel(conn net.Conn) {
	reader := bufio.NewReader(conn)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	if request.Method != http.MethodConnect {
		say(conn, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
		return
	}
	w.seen.add(Visit{To: conn.LocalAddr().String(), Host: request.Host, Path: ConnectPath})
	far, err := net.Dial("tcp", request.Host)
	if err != nil {
		say(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer closeQuietly(far)
	say(conn, "HTTP/1.1 200 OK\r\n\r\n")
	var both errgroup.Group
	both.Go(func() error { return pour(far, reader) })
	both.Go(func() error { return pour(conn, far) })
	if err := both.Wait(); err != nil {
		return // one of the two ends broke off
	}
}

// pour copies to the end and passes the end on.
func pour(to net.Conn, from io.Reader) error {
	_, err := io.Copy(to, from)
	return errors.Join(err, to.(*net.TCPConn).CloseWrite())
}
