//go:build linux

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// TLS alert descriptions (RFC 8446 section 6, RFC 6066 section 3).
const (
	alertAccessDenied     = 49
	alertUnrecognizedName = 112
	alertInternalError    = 80
)

// drainTime is how long a denied client may go on sending: closing with unread
// bytes would turn the answer into a RST that can overtake it.
const drainTime = time.Second

// errUnresolvable is a name without addresses.
var errUnresolvable = errors.New("no addresses")

// resolveError marks a failure of resolution, as against one of dialling.
type resolveError struct{ err error }

func (e *resolveError) Error() string { return "resolve: " + e.err.Error() }
func (e *resolveError) Unwrap() error { return e.err }

// failure is how a failed connection is told: the log's word, and the status and
// error type of RFC 9209 section 2.3.
type failure struct {
	word       string
	status     int
	statusType string
}

func failureOf(err error) failure {
	var resolving *resolveError
	var netErr net.Error
	switch {
	case errors.As(err, &resolving):
		return failure{audit.ErrorUnresolvable, http.StatusBadGateway, "dns_error"}
	case errors.Is(err, unix.ECONNREFUSED):
		return failure{audit.ErrorUnreachable, http.StatusBadGateway, "connection_refused"}
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return failure{audit.ErrorUpstreamReset, http.StatusBadGateway, "connection_terminated"}
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return failure{audit.ErrorUnreachable, http.StatusBadGateway, "destination_ip_unroutable"}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return failure{audit.ErrorUnreachable, http.StatusGatewayTimeout, "connection_timeout"}
	}
	return failure{audit.ErrorUnreachable, http.StatusBadGateway, "destination_unavailable"}
}

// refuse denies a connection before anything was read of it.
func (p *Proxy) refuse(c *client, s subject, reason policy.Reason) {
	s.client = c.peer
	v := verdict{Decision: policy.Decision{Reason: reason}, subject: s}
	if in := p.cfg.Policy.Load(); in != nil {
		v.Generation = in.Generation()
	}
	if s.channel == "" {
		v.subject.channel = audit.ChannelOpaque
	}
	p.record(v)
	c.reset()
}

// internal ends a connection that we could not even place.
func (p *Proxy) internal(c *client, err error) {
	p.event(audit.Event{Kind: audit.KindError, Error: audit.ErrorUnreachable, Message: err.Error()})
	c.reset()
}

// alert tells a TLS client that it was denied: a fatal alert that differs by
// reason. crypto/tls would say internal_error, so the record is written by hand.
func (c *client) alert(description byte) {
	record := []byte{21, 3, 1, 0, 2, 2, description}
	if _, err := c.tcp.Write(record); err != nil {
		c.reset()
		return
	}
	c.drain()
}

func alertFor(r policy.Reason) byte {
	switch r {
	case policy.ReasonDenied, policy.ReasonMode, policy.ReasonRevoked:
		return alertAccessDenied
	case policy.ReasonRule, policy.ReasonUnlisted, policy.ReasonSpecialAddress, policy.ReasonNoServerName,
		policy.ReasonNameMismatch, policy.ReasonECH, policy.ReasonMalformed, policy.ReasonProtocol,
		policy.ReasonQueryType, policy.ReasonNotAttributable, policy.ReasonLimit, policy.ReasonUnprotected:
	}
	return alertUnrecognizedName
}

// drain shuts down writing and reads what the client still sends, for a second at
// most.
func (c *client) drain() {
	if err := c.tcp.CloseWrite(); err != nil {
		c.reset()
		return
	}
	if err := c.tcp.SetReadDeadline(time.Now().Add(drainTime)); err != nil {
		c.reset()
		return
	}
	buf := getBuffer()
	defer putBuffer(buf)
	for {
		if _, err := c.tcp.Read(*buf); err != nil {
			return
		}
	}
}

// reset aborts the client's connection: the denial of bytes that we cannot
// answer in their own protocol.
func (c *client) reset() { reset(c.tcp) }

// reset aborts a connection with a RST. A connection that cannot be aborted is
// one that is gone.
func reset(conn *net.TCPConn) {
	if conn == nil {
		return
	}
	if err := Abort(conn); err != nil && !errors.Is(err, net.ErrClosed) {
		// Closing below is all that is left to do.
		conn.Close()
		return
	}
	conn.Close()
}

// denial is the HTTP answer to a denied request.
type denial struct {
	status      int
	proxyStatus string
	body        string
}

// deniedAnswer is 403 (400 for what does not parse) with a one-line body.
func deniedAnswer(v verdict, id string) denial {
	status := http.StatusForbidden
	errType := "http_request_denied"
	if v.Reason == policy.ReasonMalformed {
		status, errType = http.StatusBadRequest, "http_request_error"
	}
	target := v.subject.target()
	details := fmt.Sprintf("%s; target %s; decision %s", v.Reason, target, id)
	return denial{
		status:      status,
		proxyStatus: "exeat; error=" + errType + "; details=" + sfString(details),
		body:        fmt.Sprintf("exeat: %s denied: %s (decision %s)\n", target, v.Reason, id),
	}
}

// failedAnswer is 502 or 504: the request was allowed, the upstream failed.
func failedAnswer(v verdict, id string, err error) denial {
	f := failureOf(err)
	target := v.subject.target()
	details := fmt.Sprintf("%s; target %s; decision %s", f.word, target, id)
	return denial{
		status:      f.status,
		proxyStatus: "exeat; error=" + f.statusType + "; details=" + sfString(details),
		body:        fmt.Sprintf("exeat: %s was allowed but failed: %s (decision %s)\n", target, f.word, id),
	}
}

// bytes is the answer as HTTP/1.1.
func (d denial) bytes(head, keep bool) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", d.status, http.StatusText(d.status))
	fmt.Fprintf(&b, "Content-Type: text/plain\r\nContent-Length: %d\r\nProxy-Status: %s\r\n", len(d.body), d.proxyStatus)
	if !keep {
		b.WriteString("Connection: close\r\n")
	}
	b.WriteString("\r\n")
	if !head {
		b.WriteString(d.body)
	}
	return []byte(b.String())
}

// answer writes an HTTP answer and ends the connection.
func (c *client) answer(d denial) {
	if _, err := c.tcp.Write(d.bytes(false, false)); err != nil {
		c.reset()
		return
	}
	c.drain()
}

// target is the subject as a policy would write it.
func (s subject) target() string {
	host := s.name
	addr := s.claimed
	if !addr.IsValid() {
		addr = s.dst
	}
	if host == "" {
		if !addr.IsValid() {
			return "request"
		}
		return netip.AddrPortFrom(addr, s.port).String()
	}
	return host + ":" + strconv.Itoa(int(s.port))
}

// sfString is a Structured Fields string (RFC 8941 section 3.3.3).
func sfString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch ch := s[i]; {
		case ch == '"' || ch == '\\':
			b.WriteByte('\\')
			b.WriteByte(ch)
		case ch < 0x20 || ch > 0x7e:
			b.WriteByte('?')
		default:
			b.WriteByte(ch)
		}
	}
	b.WriteByte('"')
	return b.String()
}
