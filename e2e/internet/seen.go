package internet

import (
	"errors"
	"io"
	"log"
	"net"
	"sync"
)

// Visit is one connection, or one HTTP request, that reached an origin.
type Visit struct {
	To   string // the local address and port that was reached
	Host string // the HTTP Host or :authority; empty for a bare connection
	Path string
}

type seen struct {
	mu     sync.Mutex
	visits []Visit
}

func (s *seen) add(v Visit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visits = append(s.visits, v)
}

func (s *seen) all() []Visit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Visit(nil), s.visits...)
}

// countingListener notes every accepted connection.
type countingListener struct {
	net.Listener
	seen *seen
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.seen.add(Visit{To: conn.LocalAddr().String()})
	}
	return conn, err
}

// quiet takes what net/http says of handshakes that clients broke off: that is
// what the tests are about.
var quiet = log.New(io.Discard, "", 0)

// bannerFirst speaks before it is spoken to, as SSH does, then echoes.
func bannerFirst(conn net.Conn) {
	if _, err := io.WriteString(conn, "SSH-2.0-little_internet\r\n"); err != nil {
		return
	}
	echo(conn)
}

func echo(conn net.Conn) {
	if _, err := io.Copy(conn, conn); err != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		if err := half.CloseWrite(); err != nil {
			return
		}
	}
}

func closeQuietly(c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		log.Printf("little internet: close: %v", err)
	}
}
