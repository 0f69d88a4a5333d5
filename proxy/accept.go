//go:build linux

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// door is where redirected connections come in.
type door struct {
	p    *Proxy
	own  netip.AddrPort // where it listens
	held *holder
}

// enter places a connection that was accepted: an ordinary one becomes an arrival,
// which costs no goroutine; the others get theirs.
func (d *door) enter(ctx context.Context, fd int, peer netip.AddrPort) {
	p := d.p
	if !p.room() {
		resetSocket(fd)
		return
	}
	c := &client{p: p, peer: peer}
	dst, err := p.cfg.OriginalDst(fd, peer)
	c.dst = dst
	handle := p.transparentConn
	switch {
	case err != nil:
		handle = func(_ context.Context, c *client) { p.internal(c, err) }
	case p.isExplicit(dst):
		handle = p.explicitConn
	case dst == d.own || p.cfg.Local(dst.Addr()) || p.isNowhere(dst):
		// One connection dialled to ourselves would become hundreds (bypass B37).
		handle = func(_ context.Context, c *client) {
			p.refuse(c, subject{dst: dst.Addr(), port: dst.Port()}, policy.ReasonSpecialAddress)
		}
	case p.cfg.Connect != nil && p.cfg.UpstreamProxy == nil && c.ordinary(p.cfg.Policy.Load()):
		if d.arrive(ctx, c, fd) {
			return
		}
	}
	if !c.adopt(fd) {
		p.conns.Add(-1)
		return
	}
	c.begin(ctx, d.held, handle)
}

// resetSocket aborts the connection of a socket that nobody else knows. One that
// cannot be reset is one that is gone.
func resetSocket(fd int) {
	disconnect(fd)
	closeDescriptor(fd)
}

// ordinary says that nothing is to be done about a connection before its client
// has spoken: its address opens nothing, and what it says may open something.
func (c *client) ordinary(pol *policy.Compiled) bool {
	if c.dst.Port() == 80 {
		return false // what speaks HTTP needs a goroutine in any case
	}
	early := c.p.judge(pol, c.opaque())
	return early.Verdict != policy.Allow && !hopeless(early.Reason)
}

// adopt makes a connection of the runtime's of fd, which it closes.
func (c *client) adopt(fd int) bool {
	conn, err := connOf(fd)
	if err != nil {
		c.p.event(audit.Event{Kind: audit.KindDecision, Reason: policy.ReasonLimit, Message: err.Error()})
		return false
	}
	c.tcp, c.in = conn, conn
	return true
}

// connOf makes a connection of the runtime's of fd. It closes fd, where it fails
// with a reset.
func connOf(fd int) (*net.TCPConn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	conn, err := net.FileConn(f)
	if err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			return tcp, f.Close()
		}
		err = errors.Join(fmt.Errorf("%T is no TCP connection", conn), conn.Close())
	}
	return nil, errors.Join(err, disconnect(fd), f.Close())
}

// acceptFrom waits for a connection. It is the runtime's Accept but for what that
// does about each connection in case a goroutine is to read it; waited says that
// there was none at first.
func acceptFrom(ln syscall.RawConn) (fd int, peer netip.AddrPort, waited bool, err error) {
	var errno syscall.Errno
	err = ln.Read(func(listener uintptr) bool {
		fd, peer, errno = acceptNow(int(listener))
		waited = waited || errno == unix.EAGAIN
		return errno != unix.EAGAIN
	})
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return -1, peer, waited, fmt.Errorf("accept: %w", err)
	}
	return fd, peer, waited, nil
}

// inherited sets on a listener what its connections inherit.
func inherited(ln syscall.RawConn) error {
	var failed error
	err := ln.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) })
	return errors.Join(err, failed)
}

// keepIdle is after how many seconds of silence a connection of ours is probed:
// often enough for translators on the way, which forget what is silent.
const keepIdle = 30

// Connector gives Config.Connect: connections without MPTCP (which nft cannot
// follow), to whose sockets control, if not nil, is applied first.
func Connector(control func(fd int) error) func(to netip.AddrPort) (fd int, err error) {
	return func(to netip.AddrPort) (int, error) {
		family := unix.AF_INET
		if to.Addr().Is6() {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return -1, os.NewSyscallError("socket", err)
		}
		if err := begin(fd, to, control); err != nil {
			closeDescriptor(fd)
			return -1, err
		}
		return fd, nil
	}
}

// begin sets a socket up and begins its connection.
func begin(fd int, to netip.AddrPort, control func(fd int) error) error {
	for _, option := range [...]struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle},
	} {
		if errno := setOption(fd, option.level, option.name, option.value); errno != 0 {
			return os.NewSyscallError("setsockopt", errno)
		}
	}
	if control != nil {
		if err := control(fd); err != nil {
			return err
		}
	}
	if errno := connectNow(fd, to); errno != 0 && errno != unix.EINPROGRESS {
		return os.NewSyscallError("connect", errno)
	}
	return nil
}

// await waits for a connection that has begun. It resets it where that fails.
func await(ctx context.Context, conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		reset(conn)
		return err
	}
	stop := context.AfterFunc(ctx, func() { reset(conn) })
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		var errno int
		errno, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if errno != 0 {
			failed = os.NewSyscallError("connect", unix.Errno(errno))
		}
		if failed != nil {
			return true
		}
		_, err := unix.Getpeername(int(fd))
		return err == nil // else ENOTCONN: not yet
	})
	stop()
	if err = errors.Join(ctx.Err(), failed, err); err != nil {
		reset(conn)
	}
	return err
}
