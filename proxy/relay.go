//go:build linux

package proxy

import (
	"errors"
	"io"
	"net"
)

// How a relay ends other than by both sides closing in order.
var (
	// ErrClientReset: the client reset its connection; the upstream's was reset too.
	ErrClientReset = errors.New("client reset the connection")
	// ErrUpstreamReset: the upstream reset its connection; the client's was reset too.
	ErrUpstreamReset = errors.New("upstream reset the connection")
	// ErrRevoked: a newer policy forbids the flow; both connections were reset.
	ErrRevoked = errors.New("revoked by a newer policy")
	// ErrCut: the flow was cut by hand, or everything is closing.
	ErrCut = errors.New("cut")
)

// Relay joins two connections until both directions have ended, and counts into
// f. It owns both connections from here on and closes them. It neither buffers
// nor times anything: a side that is silent may be silent for ever. What was
// read ahead from either side must have been forwarded before.
//
// The calling goroutine waits, which costs its stack. Start does not.
func Relay(f *Flow, client, upstream *net.TCPConn) error {
	ended := make(chan error, 1)
	Start(f, client, upstream, func(err error) { ended <- err })
	return <-ended
}

// Start is Relay without waiting: it returns at once, and done is called with
// the outcome when both connections are closed. done runs on a goroutine that
// other relays share, so it must not block (Flow.End does not). A handler whose
// last call is Start leaves no goroutine behind: an idle tunnel then costs two
// descriptors and about a kilobyte.
func Start(f *Flow, client, upstream *net.TCPConn, done func(error)) {
	go func() {
		go func() {
			n, _ := io.Copy(client, upstream)
			f.AddBytes(0, uint64(n))
			client.CloseWrite()
		}()
		n, err := io.Copy(upstream, client)
		f.AddBytes(uint64(n), 0)
		upstream.CloseWrite()
		done(err)
	}()
}
