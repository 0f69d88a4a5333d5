package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const noAllowedName = "no allowed name is known here (--allowed)"

// httpCases speak HTTP in clear to the denied address.
func httpCases() []Case {
	const refused = "400 or 403 of exeat"
	web := func(a *attempt) netip.AddrPort { return netip.AddrPortFrom(a.IPv4, 80) }
	// request has %s for the denied name.
	request := func(id, attack, text string) Case {
		return Case{ID: id, Attack: attack, Expected: refused, try: func(a *attempt) sight {
			return a.stream(web(a), strings.ReplaceAll(text, "%s", a.Name))
		}}
	}
	host := func(id, attack string, of func(a *attempt) string) Case {
		return Case{ID: id, Attack: attack, Expected: refused, try: func(a *attempt) sight {
			return a.stream(web(a), fmt.Sprintf("GET /%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", a.marker, of(a)))
		}}
	}
	return []Case{
		host("B01", "HTTP to a denied name", func(a *attempt) string { return a.Name }),
		{ID: "B50", Attack: "an allowed Host at the attacker's address", Expected: "dialled to the name's own address", try: allowedHostElsewhere},
		{ID: "B51", Attack: "a second request, to a denied Host", Expected: "the second is refused", try: secondRequest},
		request("B52", "Content-Length beside Transfer-Encoding", "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: %s\r\n\r\n"),
		request("B52", "two different Content-Lengths", "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n123456"),
		request("B52", "a folded header", "GET / HTTP/1.1\r\nHost: allowed.test\r\n %s\r\n\r\n"),
		request("B52", "a space before the colon", "GET / HTTP/1.1\r\nHost : %s\r\n\r\n"),
		request("B52", "a user in the Host", "GET / HTTP/1.1\r\nHost: allowed.test@%s\r\n\r\n"),
		request("B52", "two Hosts", "GET / HTTP/1.1\r\nHost: allowed.test\r\nHost: %s\r\n\r\n"),
		request("B52", "no Host", "GET / HTTP/1.1\r\nAccept: */*\r\n\r\n"),
		request("B53", "an absolute form that disagrees with the Host", "GET http://%s/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n"),
		request("B53", "a CONNECT", "CONNECT %s:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n"),
		request("B54", "an upgrade to h2c", "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"),
		{ID: "B54", Attack: "HTTP/2 in clear by prior knowledge", Expected: "the stream is refused", try: priorKnowledge},
		host("B59", "a name that ends as an allowed one does", func(a *attempt) string { return "evil" + allowedOr(a) }),
		host("B59", "an allowed name with more behind it", func(a *attempt) string { return allowedOr(a) + "." + a.Name }),
		host("B59", "the Kelvin sign for a k", func(a *attempt) string { return "\u212a." + allowedOr(a) + "." + a.Name }),
		host("B59", "a fullwidth dot", func(a *attempt) string { return allowedOr(a) + "\uff0e" + a.Name }),
		host("B59", "a zero-width space", func(a *attempt) string { return allowedOr(a) + "\u200b." + a.Name }),
		host("B60", "an address as one number", func(a *attempt) string { return fmt.Sprint(number(a.IPv4)) }),
		host("B60", "an address in hexadecimal", func(a *attempt) string { return fmt.Sprintf("0x%08x", number(a.IPv4)) }),
		host("B60", "an address with parts left out", func(a *attempt) string {
			b := a.IPv4.As4()
			return fmt.Sprintf("%d.%d", b[0], number(a.IPv4)&0xffffff)
		}),
	}
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func allowedOr(a *attempt) string {
	if a.AllowedName != "" {
		return a.AllowedName
	}
	return "allowed.test"
}

// allowedHostElsewhere shows an allowed name to an address that is not its. Who
// answers cannot be told from here: the far side must not have been reached.
func allowedHostElsewhere(a *attempt) sight {
	if a.AllowedName == "" {
		return unproven("not tried", noAllowedName)
	}
	s := a.stream(netip.AddrPortFrom(a.IPv4, 80), fmt.Sprintf("GET /%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", a.marker, a.AllowedName))
	if s.verdict == Leak {
		return unproven(s.seen, noFarSide)
	}
	return s
}

// secondRequest follows an allowed request by one to a denied name.
func secondRequest(a *attempt) sight {
	if a.AllowedName == "" {
		return unproven("not tried", noAllowedName)
	}
	c, s := a.connect(netip.AddrPortFrom(a.IPv4, 80))
	if c == nil {
		return s
	}
	defer c.end()
	request := "GET /%s HTTP/1.1\r\nHost: %s\r\n\r\n"
	if _, err := fmt.Fprintf(c, request+request, "first", a.AllowedName, a.marker, a.Name); err != nil {
		return c.silent(err)
	}
	var all []byte
	buf := make([]byte, 4096)
	for len(all) < maxAnswer && bytes.Count(all, []byte("HTTP/1.1 ")) < 2 {
		n, err := c.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			break
		}
	}
	first, second, ok := strings.Cut(strings.TrimPrefix(string(all), "HTTP/1.1 "), "HTTP/1.1 ")
	if !ok {
		return unproven(fmt.Sprintf("one answer alone: %.20q", first), "the second request got no answer")
	}
	return c.judge([]byte("HTTP/1.1 "+second), 0)
}

// priorKnowledge opens a stream of HTTP/2 to the denied name.
func priorKnowledge(a *attempt) sight {
	c, s := a.connect(netip.AddrPortFrom(a.IPv4, 80))
	if c == nil {
		return s
	}
	defer c.end()
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", a.Name}, {":path", "/" + a.marker}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return unproven(err.Error(), "the request could not be written")
		}
	}
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := io.WriteString(c, http2.ClientPreface)
	err = errors.Join(err, framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true,
	}))
	if err != nil {
		return c.silent(err)
	}
	return c.hearStream(framer)
}

// hearStream waits for what becomes of stream 1.
func (c *conn) hearStream(framer *http2.Framer) sight {
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return c.silent(err)
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			var text strings.Builder
			for _, h := range f.Fields {
				if h.Name == "proxy-status" {
					fmt.Fprintf(&text, "Proxy-Status: %s\r\n", h.Value)
				}
			}
			return c.judge([]byte("HTTP/2 "+f.PseudoValue("status")+"\r\n"+text.String()+"\r\n"), 0)
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			if c.inside {
				return held("%s, by a listener of this namespace", frame.Header().Type)
			}
			return unproven(frame.Header().Type.String(), "a far side could have sent it")
		}
	}
}
