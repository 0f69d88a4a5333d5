//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/firewall"
)

// role says what a descriptor is for, from process to process.
type role string

// The roles of the descriptors that a worker gets.
const (
	roleTransparent role = "transparent"
	roleExplicit    role = "explicit"
	roleDNSPackets  role = "dns-udp"
	roleDNSStreams  role = "dns-tcp"
	roleControl     role = "control"
)

// held is a descriptor that the keeper holds for its workers.
type held struct {
	role role
	file *os.File
}

// loopbacks are the loopback addresses that we listen on.
var loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// listen binds every listener on the loopback address, on ports that the kernel
// chooses. A namespace without the family has none, which is no error.
func listen(loopback netip.Addr) (ports firewall.Ports, files []held, err error) {
	defer func() {
		if err != nil {
			for _, h := range files {
				err = errors.Join(err, h.file.Close())
			}
			files = nil
		}
	}()
	for _, l := range []struct {
		role role
		port *uint16
	}{{roleTransparent, &ports.TCP}, {roleExplicit, &ports.Explicit}} {
		f, port, err := listenTCP(loopback, 0)
		if noFamily(err) {
			return firewall.Ports{}, nil, nil
		}
		if err != nil {
			return ports, files, err
		}
		files = append(files, held{l.role, f})
		*l.port = port
	}
	dns, port, err := listenDNS(loopback)
	ports.DNS = port
	return ports, append(files, dns...), err
}

// noFamily says that the namespace lacks the address family.
func noFamily(err error) bool {
	return errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)
}

// listenDNS binds one port for both UDP and TCP.
func listenDNS(loopback netip.Addr) ([]held, uint16, error) {
	const attempts = 16 // the port that is free for TCP may be taken for UDP
	var err error
	for range attempts {
		var stream, packets *os.File
		var port uint16
		if stream, port, err = listenTCP(loopback, 0); err != nil {
			return nil, 0, err
		}
		if packets, err = listenUDP(loopback, port); err == nil {
			return []held{{roleDNSStreams, stream}, {roleDNSPackets, packets}}, port, nil
		}
		if err = errors.Join(err, stream.Close()); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, 0, err
}

// exclusive takes SO_REUSEADDR off, which Go puts on: nobody else may bind the
// port beside us (bypass.md B35).
func exclusive(_, _ string, c syscall.RawConn) error {
	var inner error
	err := c.Control(func(fd uintptr) {
		inner = os.NewSyscallError("setsockopt(SO_REUSEADDR)", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0))
	})
	return errors.Join(err, inner)
}

func listenTCP(loopback netip.Addr, port uint16) (*os.File, uint16, error) {
	config := net.ListenConfig{Control: exclusive}
	config.SetMultipathTCP(false) // which nft cannot follow
	ln, err := config.Listen(context.Background(), "tcp", netip.AddrPortFrom(loopback, port).String())
	if err != nil {
		return nil, 0, err
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return nil, 0, errors.Join(fmt.Errorf("listen: a %T, want TCP", ln), ln.Close())
	}
	f, err := tcp.File()
	at := tcp.Addr().(*net.TCPAddr).AddrPort()
	return f, at.Port(), errors.Join(err, tcp.Close())
}

func listenUDP(loopback netip.Addr, port uint16) (*os.File, error) {
	config := net.ListenConfig{Control: exclusive}
	conn, err := config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(loopback, port).String())
	if err != nil {
		return nil, err
	}
	udp, ok := conn.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen: a %T, want UDP", conn), conn.Close())
	}
	f, err := udp.File()
	return f, errors.Join(err, udp.Close())
}

// add sorts a descriptor into the listeners, by its role. It takes the file over.
func (l *Listeners) add(h held) error {
	defer h.file.Close() // net dups it
	if h.role == roleDNSPackets {
		c, err := net.FilePacketConn(h.file)
		if err == nil {
			l.DNSPackets = append(l.DNSPackets, c)
		}
		return err
	}
	ln, err := net.FileListener(h.file)
	if err != nil {
		return err
	}
	if h.role == roleDNSStreams {
		l.DNSStreams = append(l.DNSStreams, ln)
		return nil
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return errors.Join(fmt.Errorf("the %s descriptor is a %T, want TCP", h.role, ln), ln.Close())
	}
	if h.role == roleExplicit {
		l.Explicit = append(l.Explicit, tcp)
	} else {
		l.Transparent = append(l.Transparent, tcp)
	}
	return nil
}
