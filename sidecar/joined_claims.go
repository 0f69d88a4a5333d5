//go:build linux

package sidecar

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/probe"
)

// claims are the sockets of our own probes, by which their decisions are told from
// the sandbox's: by a local port that only our socket has, as long as it is open. The
// sandbox sees it (/proc/net), and may have that of another protocol or family.
// That is all that keeps a decision out of the log, so that the sandbox cannot hide
// one of its own: whoever forges packets with our port (which takes NET_RAW) hides
// what a probe has asked for and no more, and no more often than the probe did.
type claims struct {
	some atomic.Bool // lest the proxy and the resolver wait for one another

	mu   sync.Mutex
	held map[claimKey]*claim
	// ports are those to choose from, none for what the kernel chooses; next is one
	// of them.
	ports portRange
	next  uint16
}

// portRange is from first to last.
type portRange struct{ first, last uint16 }

// enoughPorts are some runs' within the two minutes that the kernel remembers a
// connection for.
const enoughPorts = 1024

// newClaims makes claims whose ports are none that the kernel gives the sandbox's
// connections: of one that was used a moment ago the redirection would make another
// (the connection table knows one flow of a port to our listener), and we should
// not know it again. They are none where services are expected either.
func newClaims() (*claims, error) {
	c := &claims{held: map[claimKey]*claim{}}
	const path = "/proc/sys/net/ipv4/ip_local_port_range"
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var low, high uint16
	if _, err := fmt.Sscan(string(data), &low, &high); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if high < math.MaxUint16-enoughPorts {
		c.ports = portRange{high + 1, math.MaxUint16}
		c.next = c.ports.first + uint16(rand.IntN(int(c.ports.last-c.ports.first)))
	}
	return c, nil
}

type claimKey struct {
	protocol policy.Protocol
	ipv6     bool
	port     uint16
}

// claim is one socket.
type claim struct {
	// fd keeps the port when the probe is done with its socket.
	fd   int
	to   netip.Addr
	made time.Time
	// left is how many decisions may still be its.
	left int
	shut bool
}

// A socket may cause maxDecisions: one each of the packet, the connection and the
// names in it, and as much again for what is sent twice. Its port is kept until the
// kernel has told of its packets (within 50 ms, on a machine at rest): it is shut
// after claimShut, so that whoever waits for more of it decides, and closed after
// claimEnds.
const (
	maxDecisions = 8
	claimShut    = 3 * time.Second
	claimEnds    = 4 * time.Second
)

// claim binds a socket and takes it in.
func (c *claims) claim(s probe.Socket) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	port, err := c.bindLocked(s)
	if err != nil {
		return err
	}
	families := []bool{s.IPv6}
	if s.IPv6 {
		only, err := unix.GetsockoptInt(s.FD, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		if err != nil {
			return fmt.Errorf("claim a probe's socket: %w", os.NewSyscallError("getsockopt(IPV6_V6ONLY)", err))
		}
		if only == 0 { // it has the port of both
			families = append(families, false)
		}
	}
	for _, ipv6 := range families {
		err = errors.Join(err, c.holdLocked(claimKey{s.Protocol, ipv6, port}, s))
	}
	return errors.Join(err, c.expireLocked(time.Now()))
}

// holdLocked keeps a socket as a claim.
func (c *claims) holdLocked(key claimKey, s probe.Socket) error {
	fd, err := unix.FcntlInt(uintptr(s.FD), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("keep a probe's socket: %w", os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err))
	}
	if before := c.held[key]; before != nil { // the kernel took its port away
		err = os.NewSyscallError("close", unix.Close(before.fd))
	}
	c.held[key] = &claim{fd: fd, to: s.To.Unmap(), made: time.Now(), left: maxDecisions}
	c.some.Store(true)
	return err
}

// bindAttempts: a port that we choose may be taken.
const bindAttempts = 64

// bindLocked gives a socket a port that is its own.
func (c *claims) bindLocked(s probe.Socket) (port uint16, err error) {
	for range bindAttempts {
		if c.ports.first != 0 {
			if c.next++; c.next < c.ports.first { // it has wrapped around
				c.next = c.ports.first
			}
		}
		at := unix.Sockaddr(&unix.SockaddrInet4{Port: int(c.next)})
		if s.IPv6 {
			at = &unix.SockaddrInet6{Port: int(c.next)}
		}
		if err = os.NewSyscallError("bind", unix.Bind(s.FD, at)); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	at, err := unix.Getsockname(s.FD)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		port = uint16(at.Port)
	case *unix.SockaddrInet6:
		port = uint16(at.Port)
	}
	return port, nil
}

// expire gives back what is old enough.
func (c *claims) expire(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expireLocked(now)
}

func (c *claims) expireLocked(now time.Time) error {
	var errs []error
	for key, claim := range c.held {
		switch age := now.Sub(claim.made); {
		case age > claimEnds:
			errs = append(errs, os.NewSyscallError("close", unix.Close(claim.fd)))
			delete(c.held, key)
		case age > claimShut && !claim.shut:
			claim.shut = true
			// Of a socket that is not connected any more there is nothing to shut.
			if err := unix.Shutdown(claim.fd, unix.SHUT_RDWR); err != nil && !errors.Is(err, unix.ENOTCONN) {
				errs = append(errs, os.NewSyscallError("shutdown", err))
			}
		}
	}
	c.some.Store(len(c.held) > 0)
	return errors.Join(errs...)
}

// close gives everything back.
func (c *claims) close() error { return c.expire(time.Now().Add(2 * claimEnds)) }

// cover says that an event is about a probe of ours and no more than that.
func (c *claims) cover(e audit.Event) bool {
	if !c.some.Load() || e.Client.Port() == 0 || e.Channel == audit.ChannelPacket && e.Client.Addr() == e.Addr {
		return false
	}
	if e.Kind != audit.KindDecision && e.Kind != audit.KindError || e.Verdict == policy.Allow && e.Name != probeName {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spendLocked(claimKey{e.Protocol, e.Client.Addr().Is6(), e.Client.Port()}, e)
}

func (c *claims) spendLocked(key claimKey, e audit.Event) bool {
	claim := c.held[key]
	// A packet may have been redirected to one of our own listeners.
	if claim == nil || claim.left == 0 || e.Channel == audit.ChannelPacket && e.Addr != claim.to && !e.Addr.IsLoopback() {
		return false
	}
	claim.left--
	return true
}
