package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// tcp connects, and asks for something in HTTP, in which a denial can be told.
func tcp(to func(*attempt) netip.Addr, port uint16) func(*attempt) sight {
	return func(a *attempt) sight {
		addr := to(a)
		if !addr.IsValid() {
			return a.nowhere("default gateway")
		}
		at := netip.AddrPortFrom(addr, port)
		return a.stream(at, fmt.Sprintf("GET /%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", a.marker, at))
	}
}

// stream connects, says something and judges what comes back.
func (a *attempt) stream(to netip.AddrPort, say string) sight {
	conn, s := a.connect(to)
	if conn == nil {
		return s
	}
	defer conn.end()
	if _, err := io.WriteString(conn, say); err != nil {
		return conn.silent(err)
	}
	return conn.hear(0)
}

// conn is a connection of an attempt.
type conn struct {
	net.Conn
	// inside: its other end is in this namespace, so that nothing has left it yet.
	inside bool
}

// connect connects; where that fails, or proves something, conn is nil. A connection
// that seems to end outside is made a second time: where an earlier flow to the same
// listener holds the source port still, address translation gives this one another,
// and its other end is not found by ours.
func (a *attempt) connect(to netip.AddrPort) (*conn, sight) {
	err := a.towards(to, policy.TCP)
	if err == nil {
		err = a.unlessAllowed(policy.Request{Kind: policy.KindAsk, Name: a.Name, Port: to.Port(), Protocol: policy.TCP})
	}
	if err != nil {
		return nil, a.sent(err)
	}
	c, s := a.connectOnce(to)
	if c == nil || c.inside {
		return c, s
	}
	c.end()
	return a.connectOnce(to)
}

func (a *attempt) connectOnce(to netip.AddrPort) (*conn, sight) {
	c, err := a.dialer(time.Second).DialContext(a.ctx, "tcp", to.String())
	if err != nil {
		return nil, a.connected(err)
	}
	if err := c.SetDeadline(a.within(2 * time.Second)); err != nil {
		return nil, unproven(err.Error(), "the connection is gone")
	}
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	return &conn{Conn: c, inside: err == nil && endsHere(local)}, sight{}
}

// connected judges a connection that failed.
func (a *attempt) connected(err error) sight {
	var network net.Error
	switch errno := errnoOf(err); {
	case err == nil, errors.Is(err, errSilent):
		return unproven("connected", noFarSide)
	case errno == unix.ECONNRESET:
		// It was connected: a proxy outside of this namespace may have passed it on.
		return unproven(short(err), noFarSide)
	case errno == unix.ECONNREFUSED, errno == unix.EHOSTUNREACH:
		return unlessQuiet(short(err), "that could be the answer of a far side")
	case errors.As(err, &network) && network.Timeout():
		return unlessQuiet("no answer", noFarSide)
	default:
		return a.sent(err)
	}
}

// connectedRaw is connected for a socket of our own making; a reset counts where
// the connection ended in this namespace.
func (a *attempt) connectedRaw(err error, inside bool) sight {
	if inside && errnoOf(err) == unix.ECONNRESET {
		return held("reset, by a listener of this namespace")
	}
	return a.connected(err)
}

// socketEndsHere is endsHere for a descriptor.
func socketEndsHere(fd int) bool {
	name, err := unix.Getsockname(fd)
	if local, ok := name.(*unix.SockaddrInet4); ok && err == nil {
		return endsHere(netip.AddrPortFrom(netip.AddrFrom4(local.Addr), uint16(local.Port)))
	}
	return false
}

// short is an error without the addresses that net.OpError repeats.
func short(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// streamError waits for the outcome of a connect, or of what was written since.
func (a *attempt) streamError(fd int) error {
	deadline := a.within(500 * time.Millisecond)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	if _, err := unix.Poll(fds, int(max(time.Until(deadline).Milliseconds(), 1))); err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("poll", err)
	}
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return os.NewSyscallError("getsockopt(SO_ERROR)", err)
	case errno != 0:
		return os.NewSyscallError("connect", unix.Errno(errno))
	}
	return errSilent
}

// endsHere says whether the other end of a connection is a socket of this
// namespace: what the kernel redirected has one in /proc/net/tcp.
func endsHere(local netip.AddrPort) bool {
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	return slices.ContainsFunc(inetSockets("tcp", "tcp6"), func(s inetSocket) bool { return s.remote == local })
}

// end closes; that it fails says nothing about the attempt.
func (c *conn) end() {
	if err := c.Close(); err != nil {
		return
	}
}

// maxAnswer is how much of an answer is read.
const maxAnswer = 16 << 10

// hear reads the answer. Alerts of TLS are ours where tlsRecord is 21.
func (c *conn) hear(tlsRecord byte) sight {
	var answer []byte
	buf := make([]byte, 4096)
	for len(answer) < maxAnswer && !isWhole(answer, tlsRecord) {
		n, err := c.Read(buf)
		answer = append(answer, buf[:n]...)
		if err != nil {
			if len(answer) == 0 {
				return c.silent(err)
			}
			break
		}
	}
	return c.judge(answer, tlsRecord)
}

// isWhole says whether enough was read to judge by.
func isWhole(answer []byte, tlsRecord byte) bool {
	if tlsRecord != 0 && len(answer) >= 7 {
		return true
	}
	return bytes.Contains(answer, []byte("\r\n\r\n"))
}

// silent judges a connection that ended, or stayed, without a word.
func (c *conn) silent(err error) sight {
	seen := "no answer"
	switch {
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ENOTCONN):
		seen = "reset"
	case errors.Is(err, io.EOF):
		seen = "closed without a word"
	}
	if seen != "no answer" && c.inside {
		return held("%s, by a listener of this namespace", seen)
	}
	return unproven(seen, noFarSide)
}

// judge tells exeat's denials from anything else that can be heard.
func (c *conn) judge(answer []byte, tlsRecord byte) sight {
	if len(answer) >= 7 && answer[0] == 21 && tlsRecord != 0 {
		if c.inside {
			return held("TLS alert %d, by a listener of this namespace", answer[6])
		}
		return unproven(fmt.Sprintf("TLS alert %d", answer[6]), "a far side could have sent it")
	}
	line, _, _ := strings.Cut(string(answer), "\r\n")
	_, status, ours := strings.Cut(string(answer), "Proxy-Status: exeat;")
	status, _, _ = strings.Cut(status, "\r\n")
	switch {
	case ours && (strings.Contains(status, "error=http_request_denied") || strings.Contains(status, "error=http_request_error")):
		return held("%s (exeat: %s)", line, detail(status))
	case ours:
		return unproven(line+" (exeat: "+detail(status)+")", "the policy in force allows it: nothing is held back here")
	case len(answer) > 0 && c.inside && strings.HasPrefix(line, "HTTP/1.1 400"):
		return held("%s, by a listener of this namespace", line)
	}
	return leak("answered: %.60q", answer)
}

// detail is the details of a Proxy-Status.
func detail(status string) string {
	_, details, _ := strings.Cut(status, "details=")
	reason, _, _ := strings.Cut(strings.Trim(details, `"`), ";")
	return reason
}

// hangs times the refusal of a connection.
func hangs(a *attempt) sight {
	began := time.Now()
	s := tcp(func(a *attempt) netip.Addr { return a.IPv4 }, tcpPort)(a)
	took := time.Since(began).Round(time.Millisecond)
	if s.verdict == Leak || s.seen == "no answer" {
		return s
	}
	s.seen = fmt.Sprintf("%s, after %s", s.seen, took)
	if took > time.Second {
		return leak("%s", s.seen)
	}
	return s
}
