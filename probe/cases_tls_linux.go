package probe

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
)

// helloParts are what a ClientHello is made of.
type helloParts struct {
	// name is the server name, as raw bytes; nil leaves the extension out.
	name []byte
	// second is another name of type host_name in the same extension.
	second []byte
	// extensions are appended as they are.
	extensions []byte
	// perRecord is how many bytes go into a TLS record; 0 is all in one.
	perRecord int
}

// tlsCases show a server name, or none, to the denied address.
func tlsCases() []Case {
	const refused = "a TLS alert, or reset"
	c := func(id, attack string, parts func(a *attempt) helloParts) Case {
		return Case{ID: id, Attack: attack, Expected: refused, try: func(a *attempt) sight { return a.hello(443, parts(a)) }}
	}
	name := func(of func(a *attempt) string) func(a *attempt) helloParts {
		return func(a *attempt) helloParts { return helloParts{name: []byte(of(a))} }
	}
	bytesOn := func(id, attack string, port uint16, text func(a *attempt) string) Case {
		return Case{ID: id, Attack: attack, Expected: "reset", try: func(a *attempt) sight {
			return a.opaque(netip.AddrPortFrom(a.IPv4, port), text(a))
		}}
	}
	return []Case{
		c("B01", "TLS to a denied name", name(func(a *attempt) string { return a.Name })),
		{ID: "B50", Attack: "an allowed server name at the attacker's address", Expected: "dialled to the name's own address", try: allowedNameElsewhere},
		c("B55", "no server name", func(*attempt) helloParts { return helloParts{} }),
		c("B55", "an address for a server name", name(func(a *attempt) string { return a.IPv4.String() })),
		c("B55", "a NUL in the server name", name(func(a *attempt) string { return allowedOr(a) + "\x00." + a.Name })),
		c("B55", "a line break in the server name", name(func(a *attempt) string { return allowedOr(a) + "\r\nHost: " + a.Name })),
		c("B55", "letters that are not ASCII in the server name", name(func(a *attempt) string { return "\u212a." + a.Name })),
		c("B55", "a server name of 16,000 bytes", name(func(a *attempt) string { return strings.Repeat("a.", 8000-1) + "aa" })),
		c("B55", "two server names", func(a *attempt) helloParts {
			return helloParts{name: []byte(allowedOr(a)), second: []byte(a.Name)}
		}),
		c("B56", "a ClientHello of one byte a record", func(a *attempt) helloParts {
			return helloParts{name: []byte(a.Name), perRecord: 1}
		}),
		c("B56", "a ClientHello as large as post-quantum keys make it", func(a *attempt) helloParts {
			return helloParts{name: []byte(a.Name), extensions: extension(0xfa77, make([]byte, 8000))}
		}),
		c("B57", "an encrypted ClientHello behind a denied name", func(a *attempt) helloParts {
			return helloParts{name: []byte(a.Name), extensions: extension(0xfe0d, append([]byte{0, 0, 1, 0, 1, 7, 0, 32}, make([]byte, 34+64)...))}
		}),
		bytesOn("B55", "an SSLv2 hello", 443, func(*attempt) string {
			return "\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + strings.Repeat("\x01", 37)
		}),
		bytesOn("B58", "bytes of no protocol on port 443", 443, func(a *attempt) string { return a.marker + "\r\n" }),
		bytesOn("B58", "bytes of no protocol on port 80", 80, func(a *attempt) string { return "\x00" + a.marker }),
		bytesOn("B58", "a first byte as TLS has it, and then something else", 443, func(a *attempt) string { return "\x16" + a.marker }),
	}
}

func extension(typ uint16, data []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// hostName is one entry of the server_name extension (RFC 6066 section 3).
func hostName(name []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{0}, uint16(len(name))), name...)
}

// clientHello is a ClientHello of TLS 1.2 and 1.3 in one or many records, with the
// marker for a session.
func (p helloParts) clientHello(marker string) []byte {
	var ext []byte
	if p.name != nil {
		list := hostName(p.name)
		if p.second != nil {
			list = append(list, hostName(p.second)...)
		}
		ext = extension(0, append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...))
	}
	ext = append(ext, extension(10, []byte{0, 4, 0, 29, 0, 23})...)                                          // groups
	ext = append(ext, extension(11, []byte{1, 0})...)                                                        // point formats
	ext = append(ext, extension(13, []byte{0, 6, 4, 3, 8, 4, 4, 1})...)                                      // signatures
	ext = append(ext, extension(43, []byte{4, 3, 4, 3, 3})...)                                               // versions
	ext = append(ext, extension(51, append([]byte{0, 36, 0, 29, 0, 32}, bytes.Repeat([]byte{9}, 32)...))...) // a key share
	ext = append(ext, p.extensions...)

	body := append([]byte{3, 3}, bytes.Repeat([]byte{7}, 32)...)
	session := marker[:min(len(marker), 32)]
	body = append(append(body, byte(len(session))), session...)
	body = append(body, 0, 6, 0x13, 0x01, 0xc0, 0x2f, 0xc0, 0x2b) // ciphers
	body = append(body, 1, 0)                                     // no compression
	body = append(binary.BigEndian.AppendUint16(body, uint16(len(ext))), ext...)
	message := append([]byte{1, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)

	size := p.perRecord
	if size == 0 {
		size = 16 << 10
	}
	var records []byte
	for len(message) > 0 {
		n := min(size, len(message))
		records = binary.BigEndian.AppendUint16(append(records, 22, 3, 1), uint16(n))
		records = append(records, message[:n]...)
		message = message[n:]
	}
	return records
}

// hello connects and shows a ClientHello.
func (a *attempt) hello(port uint16, p helloParts) sight {
	c, s := a.connect(netip.AddrPortFrom(a.IPv4, port))
	if c == nil {
		return s
	}
	defer c.end()
	if _, err := c.Write(p.clientHello(a.marker)); err != nil {
		return c.silent(err)
	}
	return c.hear(21)
}

// allowedNameElsewhere is allowedHostElsewhere with TLS.
func allowedNameElsewhere(a *attempt) sight {
	if a.AllowedName == "" {
		return unproven("not tried", noAllowedName)
	}
	s := a.hello(443, helloParts{name: []byte(a.AllowedName)})
	if s.verdict == Leak {
		return unproven("a TLS handshake began", noFarSide)
	}
	return s
}

// opaque sends bytes, and ends its side so that whoever waits for more goes on.
func (a *attempt) opaque(to netip.AddrPort, text string) sight {
	c, s := a.connect(to)
	if c == nil {
		return s
	}
	defer c.end()
	if _, err := c.Write([]byte(text)); err != nil {
		return c.silent(err)
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		if err := half.CloseWrite(); err != nil {
			return c.silent(err)
		}
	}
	return c.hear(21)
}
