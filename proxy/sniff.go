//go:build linux

package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/exeat/exeat/policy"
)

// wire is what a connection's first bytes are.
type wire uint8

const (
	// wireUnknown: too few bytes to tell.
	wireUnknown wire = iota
	wireTLS
	wireHTTP1
	wireHTTP2
	wireOpaque
)

// contentHandshake is the TLS record type that a ClientHello comes in (RFC 8446
// section 5.1).
const contentHandshake = 0x16

// extensionECH is encrypted_client_hello (RFC 9849 section 5).
const extensionECH = 0xfe0d

// http2Preface is what an HTTP/2 client with prior knowledge begins with (RFC
// 9113 section 3.4).
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// maxMethod is the longest request method that is taken for one.
const maxMethod = 32

// errHelloRead ends crypto/tls's handshake once it has parsed the ClientHello.
var errHelloRead = errors.New("client hello read")

// errNoHello: there was no ClientHello.
var errNoHello = errors.New("no client hello")

// clientHello is what a ClientHello names.
type clientHello struct {
	name    string
	claimed netip.Addr
	finding policy.Finding
}

// helloConfig is the configuration of every handshake that is only read.
func helloConfig() *tls.Config {
	return &tls.Config{
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			if h, ok := info.Conn.(*helloConn); ok {
				h.found = true
				h.hello = namedBy(info.ServerName, slices.Contains(info.Extensions, extensionECH))
			}
			return nil, errHelloRead
		},
		// Never used: no handshake gets that far.
		MinVersion: tls.VersionTLS12,
	}
}

// namedBy takes the name that a ClientHello asks for; ech says that another one may
// be encrypted in it. crypto/tls refuses two names and a trailing dot; the grammar is
// ours.
func namedBy(serverName string, ech bool) clientHello {
	if serverName == "" {
		return clientHello{finding: policy.FindingNoServerName}
	}
	host, err := policy.ParseWireHost(serverName)
	if err != nil {
		return clientHello{finding: policy.FindingMalformed}
	}
	h := clientHello{name: host.Name, claimed: host.Addr}
	if ech && h.name != "" {
		h.finding = policy.FindingECH
	}
	return h
}

// sniffed is what reading a connection's first message brought.
type sniffed struct {
	wire wire
	// hello is what a wireTLS asks for; finding is why any other could not be read.
	hello   clientHello
	finding policy.Finding
	// woken: reading was stopped because the upstream spoke, or failed, first.
	woken bool
	// closed: the client ended its side before it said anything.
	closed bool
}

// sniff reads until it can tell what the client speaks; of TLS, the whole
// ClientHello. strict says that it must be HTTP or TLS (ports 80 and 443), so that
// anything like a request line is taken for HTTP and answered as such. patience
// is how long the first byte may take; 0 is for ever. mayPass says that bytes
// which are neither may pass: then they are not held long for being unclear.
func (c *client) sniff(strict bool, patience time.Duration, mayPass bool) sniffed {
	if patience > 0 {
		c.deadline(time.Now().Add(patience - c.waited))
	}
	c.waited = 0
	started := false
	for {
		if len(c.recorded) > 0 {
			if !started {
				started = true
				if !c.spoke(theClient) {
					return sniffed{wire: wireUnknown, woken: true}
				}
				limit := c.p.cfg.Limits.SniffTimeout
				if mayPass && c.recorded[0] != contentHandshake {
					limit = min(limit, opaquePatience)
				}
				c.deadline(time.Now().Add(limit))
			}
			switch w := classify(c.recorded, strict); w {
			case wireTLS:
				return c.sniffTLS()
			case wireHTTP1, wireHTTP2, wireOpaque:
				return sniffed{wire: w}
			case wireUnknown:
			}
		}
		if _, err := c.more(); err != nil {
			return c.sniffEnded(err, strict)
		}
	}
}

// sniffEnded is for bytes that ended before it was clear what they are.
func (c *client) sniffEnded(err error, strict bool) sniffed {
	switch {
	case len(c.recorded) == 0 && c.first.Load() == theUpstream:
		return sniffed{woken: true}
	case isTimeout(err) && (strict || len(c.recorded) == 0):
		return sniffed{wire: wireUnknown, finding: policy.FindingTimeout}
	case len(c.recorded) == 0:
		return sniffed{wire: wireUnknown, finding: policy.FindingTimeout, closed: true}
	case !strict:
		return sniffed{wire: wireOpaque}
	}
	return sniffed{wire: wireOpaque, finding: policy.FindingMalformed}
}

// sniffTLS reads the ClientHello, in however many records and segments it comes.
// A first byte 0x16 must be a whole one.
func (c *client) sniffTLS() sniffed {
	hello, err := c.readHello()
	switch {
	case err == nil:
	case isTimeout(err):
		hello = clientHello{finding: policy.FindingTimeout}
	default:
		hello = clientHello{finding: policy.FindingMalformed}
	}
	return sniffed{wire: wireTLS, hello: hello}
}

// readHello reads the ClientHello, or has crypto/tls read it, from what is recorded
// and what comes; an error says that there is none, or not yet.
func (c *client) readHello() (clientHello, error) {
	if name, ok := ordinaryHello(c.recorded); ok {
		return namedBy(string(name), false), nil
	}
	c.next = 0
	h := &helloConn{client: c}
	err := tls.Server(h, c.p.hello).Handshake()
	c.next = 0
	if h.found {
		return h.hello, nil
	}
	if err == nil {
		err = errNoHello // no handshake gets that far
	}
	return clientHello{}, err
}

// classify tells what begins with b. TLS is its content type; HTTP/1 a request
// line (where strict, its method and a space); HTTP/2 its preface.
func classify(b []byte, strict bool) wire {
	if b[0] == contentHandshake {
		return wireTLS
	}
	if n := min(len(b), len(http2Preface)); string(b[:n]) == http2Preface[:n] {
		if n == len(http2Preface) {
			return wireHTTP2
		}
		return wireUnknown
	}
	return classifyLine(b, strict)
}

func classifyLine(b []byte, strict bool) wire {
	i := 0
	for i < len(b) && i <= maxMethod && isMethodByte(b[i], strict) {
		i++
	}
	switch {
	case i == len(b) && i <= maxMethod:
		return wireUnknown
	case i == 0 || i > maxMethod || b[i] != ' ':
		return wireOpaque
	case strict:
		return wireHTTP1
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	if !whole {
		if bytes.ContainsFunc(line[i:], func(r rune) bool { return r < ' ' && r != '\r' }) {
			return wireOpaque
		}
		return wireUnknown
	}
	if at := bytes.LastIndexByte(line, ' '); at > i && bytes.HasPrefix(line[at+1:], []byte("HTTP/")) {
		return wireHTTP1
	}
	return wireOpaque
}

// isMethodByte: a token (RFC 9110 section 5.6.2); where other protocols may be
// meant, of upper-case letters and hyphens, as every registered method is.
func isMethodByte(b byte, strict bool) bool {
	return b >= 'A' && b <= 'Z' || b == '-' || strict && isTokenByte(b)
}
