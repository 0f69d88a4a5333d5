//go:build linux

package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/exeat/exeat/policy"
)

// errHead is wrapped by every reason not to take a request for one.
var errHead = errors.New("malformed request")

// head is what a request's head names, before net/http parses it. The grammar
// here is stricter than net/http's, which forgives what two parsers can read in
// two ways (RFC 9112 section 11.2): line folding, bare LF, a Content-Length beside
// a Transfer-Encoding.
type head struct {
	method string
	target string
	minor  byte
	// host is the Host field, uri the authority of an absolute-form target or of a
	// CONNECT; either may be missing.
	host, uri authority
	absolute  bool
}

// authority is a host and port as a request shows them. port is 0 where none is
// written.
type authority struct {
	host policy.Host
	port uint16
}

func (a authority) set() bool { return a.host.Name != "" || a.host.Addr.IsValid() }

func (a authority) withPort(port uint16) authority {
	if a.port == 0 {
		a.port = port
	}
	return a
}

// parseHead checks a whole request head, from the request line to the empty line.
func parseHead(b []byte) (head, error) {
	rest, ok := bytes.CutSuffix(b, []byte("\r\n\r\n"))
	if !ok {
		return head{}, fmt.Errorf("%w: head does not end in an empty line", errHead)
	}
	line, fields, more := bytes.Cut(rest, []byte("\r\n"))
	h, err := parseRequestLine(line)
	if err != nil {
		return head{}, err
	}
	var f framing
	for more {
		line, fields, more = bytes.Cut(fields, []byte("\r\n"))
		if err := h.field(line, &f); err != nil {
			return head{}, err
		}
	}
	return h, h.check(f)
}

// framing are the fields that delimit a body or name the host.
type framing struct{ hosts, lengths, encodings int }

func parseRequestLine(line []byte) (head, error) {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	target, version, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 || len(method) == 0 || len(method) > maxMethod || len(target) == 0 {
		return head{}, fmt.Errorf("%w: request line", errHead)
	}
	for _, c := range method {
		if !isTokenByte(c) {
			return head{}, fmt.Errorf("%w: method", errHead)
		}
	}
	for _, c := range target {
		if c <= ' ' || c == 0x7f || c == '#' {
			return head{}, fmt.Errorf("%w: request target", errHead)
		}
	}
	v := string(version)
	if v != "HTTP/1.1" && v != "HTTP/1.0" {
		return head{}, fmt.Errorf("%w: version", errHead)
	}
	h := head{method: string(method), target: string(target), minor: v[len(v)-1] - '0'}
	return h, h.parseTarget()
}

// parseTarget sorts the four forms of a request target (RFC 9112 section 3.2).
func (h *head) parseTarget() error {
	var err error
	switch {
	case h.method == http.MethodConnect:
		h.uri, err = parseAuthority(h.target)
		if err == nil && h.uri.port == 0 {
			err = fmt.Errorf("%w: CONNECT without a port", errHead)
		}
	case h.target[0] == '/', h.target == "*" && h.method == http.MethodOptions:
	case len(h.target) > 7 && strings.EqualFold(h.target[:7], "http://"):
		h.absolute = true
		rest := h.target[7:]
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		h.uri, err = parseAuthority(rest[:end])
		h.target = rest[end:]
		if h.target == "" || h.target[0] == '?' {
			h.target = "/" + h.target
		}
	default:
		err = fmt.Errorf("%w: request target", errHead)
	}
	return err
}

// field checks one header line.
func (h *head) field(line []byte, f *framing) error {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || len(name) == 0 {
		return fmt.Errorf("%w: header line", errHead)
	}
	for _, c := range name {
		// A space before the colon, or at the start of the line (folding), is one.
		if !isTokenByte(c) {
			return fmt.Errorf("%w: header name", errHead)
		}
	}
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return fmt.Errorf("%w: header value", errHead)
		}
	}
	v := string(bytes.Trim(value, " \t"))
	switch {
	case asciiEqual(name, "host"):
		f.hosts++
		var err error
		h.host, err = parseAuthority(v)
		return err
	case asciiEqual(name, "content-length"):
		f.lengths++
		if !digits(v) {
			return fmt.Errorf("%w: content length", errHead)
		}
	case asciiEqual(name, "transfer-encoding"):
		f.encodings++
		if !strings.EqualFold(v, "chunked") {
			return fmt.Errorf("%w: transfer encoding", errHead)
		}
	}
	return nil
}

// check holds the whole head against what makes two parsers disagree.
func (h *head) check(f framing) error {
	switch {
	case f.hosts > 1, f.hosts == 0 && (h.minor == 1 || !h.uri.set()):
		return fmt.Errorf("%w: %d Host fields", errHead, f.hosts)
	case f.lengths > 1, f.encodings > 1, f.lengths+f.encodings > 1:
		return fmt.Errorf("%w: body delimited twice", errHead)
	case f.encodings > 0 && h.minor == 0:
		return fmt.Errorf("%w: transfer encoding in HTTP/1.0", errHead)
	}
	return nil
}

// parseAuthority reads host[:port] as strictly as names are (bypass B52, B59,
// B60): userinfo, white space and odd numbers are refused by the name grammar.
func parseAuthority(s string) (authority, error) {
	host, port := s, ""
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return authority{}, fmt.Errorf("%w: authority", errHead)
		}
		host, port = s[:end+1], s[end+1:]
		if port != "" {
			if port[0] != ':' {
				return authority{}, fmt.Errorf("%w: authority", errHead)
			}
			port = port[1:]
		}
	} else if at := strings.IndexByte(s, ':'); at >= 0 {
		host, port = s[:at], s[at+1:]
	}
	parsed, err := policy.ParseWireHost(host)
	if err != nil {
		return authority{}, fmt.Errorf("%w: host", errHead)
	}
	a := authority{host: parsed}
	a.host.Addr = unmap(a.host.Addr)
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || !digits(port) {
			return authority{}, fmt.Errorf("%w: port", errHead)
		}
		a.port = uint16(n)
	}
	return a, nil
}

func unmap(a netip.Addr) netip.Addr {
	if a.IsValid() {
		return a.Unmap()
	}
	return a
}

func digits(s string) bool {
	if s == "" || len(s) > 18 {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// isTokenByte is tchar of RFC 9110 section 5.6.2.
func isTokenByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func asciiEqual(name []byte, lower string) bool {
	return len(name) == len(lower) && strings.EqualFold(string(name), lower)
}

// readHead reads one request head of at most limit bytes, without what follows it.
func readHead(in *bufio.Reader, into []byte, limit int) ([]byte, error) {
	lineStart := 0
	for {
		part, err := in.ReadSlice('\n')
		into = append(into, part...)
		switch {
		case len(into) > limit:
			return into, fmt.Errorf("%w: head too long", errHead)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return into, err
		}
		line := into[lineStart:]
		if len(line) == 1 || len(line) == 2 && line[0] == '\r' {
			return into, nil
		}
		lineStart = len(into)
	}
}
