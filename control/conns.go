package control

import (
	"net"
	"sync"
)

// countedListener closes at once what exceeds limit open connections, so that
// nobody's idle ones can keep the next caller waiting for an accept.
type countedListener struct {
	net.Listener
	limit int

	mu   sync.Mutex
	open int
	idle *sync.Cond // made by the first wait
}

// Accept gives the next connection within the limit.
func (l *countedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.add() {
			return &countedConn{Conn: conn, of: l}, nil
		}
		if err := conn.Close(); err != nil {
			return nil, err
		}
	}
}

func (l *countedListener) add() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limit {
		return false
	}
	l.open++
	return true
}

func (l *countedListener) remove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.idle != nil {
		l.idle.Broadcast()
	}
}

// wait returns when every connection is closed.
func (l *countedListener) wait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = sync.NewCond(&l.mu)
	for l.open > 0 {
		l.idle.Wait()
	}
}

// countedConn counts itself out once.
type countedConn struct {
	net.Conn
	of   *countedListener
	once sync.Once
}

// Close closes the connection.
func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.of.remove)
	return err
}
