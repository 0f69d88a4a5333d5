//go:build linux

package sidecar

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/firewall"
)

// engineDNS is where Docker puts its resolver in the namespaces of user-defined
// networks.
var engineDNS = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 11}), 53)

// discoveryTimeout is how long the engine's DNS may take to answer, or to ask.
const discoveryTimeout = 2 * time.Second

// discovery finds out whether there is an engine's DNS, and whom that asks.
type discovery struct {
	// packets are our DNS sockets, to which the rules bring what it asks.
	packets []net.PacketConn
	streams []*net.TCPListener
	kernel  *firewall.Kernel
	dial    dnsfilter.Dialer
}

// run asks the engine's DNS one question that nobody can answer. Where it looks
// for the answer from inside this namespace, our redirect catches its question,
// and the kernel knows whom it was meant for (design.md, dnsfilter).
//
// No answer is no error, for the sandbox may have named an engine that is not
// there; silent says then what was met instead.
func (d discovery) run(ctx context.Context) (found bool, resolver netip.Addr, silent, err error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	name := strings.ToLower(rand.Text()) + ".invalid."
	caught := make(chan netip.AddrPort, len(d.packets)+len(d.streams))
	for _, conn := range d.packets {
		work.Go(func() { catch(ctx, conn, name, caught) })
	}
	for _, ln := range d.streams {
		work.Go(func() { catchStream(ctx, ln, name, caught) })
	}
	answered := make(chan error, 1)
	work.Go(func() { answered <- d.ask(ctx, name) })
	select {
	case client := <-caught:
		asked, known, err := d.kernel.Questioned(client)
		if err != nil || !known {
			return true, netip.Addr{}, nil, errors.Join(err, fmt.Errorf("the engine's DNS asked somebody from %s, and the kernel does not know whom", client))
		}
		return true, asked.Addr(), nil, nil
	case silent := <-answered:
		return silent == nil, netip.Addr{}, silent, nil
	}
}

// ask asks the engine's DNS for name; nil when it answered, whatever that was.
func (d discovery) ask(ctx context.Context, name string) error {
	conn, err := d.dial.DialContext(ctx, "udp", engineDNS.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() {
		if err := conn.SetDeadline(time.Unix(1, 0)); err != nil {
			return // it is closed
		}
	})
	defer stop()
	question, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		return err
	}
	if _, err := conn.Write(question); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 4096))
	return err
}

// catch reads what comes to one of our DNS sockets until the question for name is
// among it. Others' questions are lost, and asked again by their clients.
func catch(ctx context.Context, conn net.PacketConn, name string, caught chan<- netip.AddrPort) {
	stop := context.AfterFunc(ctx, func() {
		if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return // it is closed
		}
	})
	defer stop()
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dns.Msg
		if m.Unpack(buf[:n]) != nil || len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, name) {
			continue
		}
		if udp, ok := from.(*net.UDPAddr); ok {
			at := udp.AddrPort()
			caught <- netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
			return
		}
	}
}

// ownDialer makes our connections so that the rules know them as ours.
type ownDialer struct {
	net.Dialer
	// streamEngine asks the engine's DNS over TCP alone: over UDP a sandbox with
	// NET_RAW could forge its answers (bypass.md B45).
	streamEngine bool
}

// DialContext implements dnsfilter.Dialer.
func (d *ownDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if d.streamEngine && network == "udp" && address == engineDNS.String() {
		conn, err := d.Dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return &framedConn{Conn: conn}, nil
	}
	return d.Dialer.DialContext(ctx, network, address)
}

// framedConn carries datagrams over a stream, as DNS over TCP does (RFC 1035
// section 4.2.2).
type framedConn struct{ net.Conn }

// Write sends one message.
func (c *framedConn) Write(b []byte) (int, error) {
	if len(b) > 0xffff {
		return 0, fmt.Errorf("a message of %d bytes does not fit a frame", len(b))
	}
	frame := append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(b)), uint16(len(b))), b...)
	if _, err := c.Conn.Write(frame); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Read receives one message, whose end is lost where b is too short.
func (c *framedConn) Read(b []byte) (int, error) {
	var size [2]byte
	if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
		return 0, err
	}
	message := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c.Conn, message); err != nil {
		return 0, err
	}
	return copy(b, message), nil
}
