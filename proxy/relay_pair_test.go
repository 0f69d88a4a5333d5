//go:build linux

package proxy

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// flowEvents is a Recorder that keeps what it is told.
type flowEvents struct {
	mu     sync.Mutex
	events []audit.Event
}

func (l *flowEvents) Record(e audit.Event) audit.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	return e
}

func (l *flowEvents) all() []audit.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]audit.Event(nil), l.events...)
}

func newTestFlows(t testing.TB) (*Flows, *flowEvents) {
	t.Helper()
	events := &flowEvents{}
	flows := NewFlows(events)
	t.Cleanup(flows.Close)
	return flows, events
}

// tcpPair connects two sockets over loopback.
func tcpPair(t testing.TB) (dialled, accepted *net.TCPConn) {
	t.Helper()
	dialled, accepted, err := newTCPPair(loopbackListener(t))
	if err != nil {
		t.Fatal(err)
	}
	return dialled, accepted
}

func loopbackListener(t testing.TB) *net.TCPListener {
	t.Helper()
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	ln.SetDeadline(time.Now().Add(2 * time.Minute))
	t.Cleanup(func() { ln.Close() })
	return ln
}

func newTCPPair(ln *net.TCPListener) (dialled, accepted *net.TCPConn, err error) {
	dialled, err = net.DialTCP("tcp", nil, ln.Addr().(*net.TCPAddr))
	if err != nil {
		return nil, nil, err
	}
	accepted, err = ln.AcceptTCP()
	if err != nil {
		return nil, nil, errors.Join(err, dialled.Close())
	}
	return dialled, accepted, nil
}

// relayed is a connection from client to server with a relay in between.
type relayed struct {
	client, server *net.TCPConn
	flow           *Flow
	ended          chan error
}

func startRelayed(t testing.TB, flows *Flows) *relayed {
	t.Helper()
	r, err := newRelayed(flows, loopbackListener(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.client.Close()
		r.server.Close()
	})
	return r
}

func newRelayed(flows *Flows, ln *net.TCPListener) (*relayed, error) {
	client, a, err := newTCPPair(ln)
	if err != nil {
		return nil, err
	}
	b, server, err := newTCPPair(ln)
	if err != nil {
		return nil, err
	}
	r := &relayed{client: client, server: server, ended: make(chan error, 1)}
	r.flow = flows.Register(testFlow(), nil)
	Start(r.flow, a, b, func(err error) {
		r.flow.End(err)
		r.ended <- err
	})
	return r, nil
}

func testFlow() FlowInfo {
	addr := netip.MustParseAddr("203.0.113.10")
	return FlowInfo{
		Client: netip.MustParseAddrPort("198.51.100.2:4321"), Name: "origin.test", Addr: addr, Port: 443,
		Channel:    audit.ChannelTLS,
		Request:    policy.Request{Kind: policy.KindConnection, Name: "origin.test", Addr: addr, Port: 443},
		Decision:   policy.Decision{Verdict: policy.Allow, Reason: policy.ReasonRule, Rule: "origin.test", Generation: 1},
		DecisionID: "d-1",
	}
}

func (r *relayed) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the relay has not ended after 20 s")
		return nil
	}
}

// noise is what the tests send: slices of it, so that making bytes costs nothing.
var noise = sync.OnceValue(func() []byte {
	source := rand.NewChaCha8([32]byte{7})
	buffer := make([]byte, 4<<20)
	source.Read(buffer)
	return buffer
})

// pour writes n bytes in writes of many sizes and says what their checksum is.
func pour(w io.Writer, seed uint64, n int) ([]byte, error) {
	source := rand.New(rand.NewPCG(seed, 1))
	sum, noise := sha256.New(), noise()
	for n > 0 {
		size := 1 + source.IntN(100)
		switch source.IntN(4) {
		case 0:
			size = 1 + source.IntN(64<<10)
		case 1:
			size = 1 + source.IntN(len(noise)/2)
		}
		size = min(size, n)
		offset := source.IntN(len(noise) - size + 1)
		sum.Write(noise[offset : offset+size])
		if _, err := w.Write(noise[offset : offset+size]); err != nil {
			return nil, err
		}
		n -= size
	}
	return sum.Sum(nil), nil
}

// drain reads to the end, in reads of many sizes.
func drain(r io.Reader, seed uint64) ([]byte, int, error) {
	source := rand.New(rand.NewPCG(seed, 2))
	var sum hash.Hash = sha256.New()
	buffer := make([]byte, 64<<10)
	total := 0
	for {
		n, err := r.Read(buffer[:1+source.IntN(len(buffer))])
		sum.Write(buffer[:n])
		total += n
		if err == io.EOF {
			return sum.Sum(nil), total, nil
		}
		if err != nil {
			return nil, total, err
		}
	}
}

// exchange sends sizes both ways at once, each ended by a half-close, and checks
// every byte.
func exchange(client, server *net.TCPConn, seed uint64, up, down int) error {
	type result struct {
		sum []byte
		err error
	}
	send := func(c *net.TCPConn, seed uint64, n int) chan result {
		sent := make(chan result, 1)
		go func() {
			sum, err := pour(c, seed, n)
			sent <- result{sum, errors.Join(err, c.CloseWrite())}
		}()
		return sent
	}
	receive := func(c *net.TCPConn, seed uint64) chan result {
		got := make(chan result, 1)
		go func() {
			sum, _, err := drain(c, seed)
			got <- result{sum, err}
		}()
		return got
	}
	upSent, downSent := send(client, seed, up), send(server, seed+1, down)
	upGot, downGot := receive(server, seed+2), receive(client, seed+3)
	for _, pair := range [][2]chan result{{upSent, upGot}, {downSent, downGot}} {
		sent, got := <-pair[0], <-pair[1]
		if sent.err != nil || got.err != nil {
			return errors.Join(sent.err, got.err)
		}
		if string(sent.sum) != string(got.sum) {
			return errors.New("the bytes that arrived are not those that were sent")
		}
	}
	return nil
}
