//go:build linux

package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/exeat/exeat/policy"
)

// byCryptoTLS is what crypto/tls makes of b; false where it finds no ClientHello.
func byCryptoTLS(b []byte) (info tls.ClientHelloInfo, ok bool) {
	config := &tls.Config{
		GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			info, ok = *i, true
			return nil, errHelloRead
		},
		MinVersion: tls.VersionTLS12,
	}
	// It fails in any case.
	err := tls.Server(readOnly{r: bytes.NewReader(b)}, config).Handshake()
	return info, ok && err != nil
}

// readOnly is a connection that only says something.
type readOnly struct {
	net.Conn
	r io.Reader
}

func (c readOnly) Read(b []byte) (int, error)  { return c.r.Read(b) }
func (c readOnly) Write(b []byte) (int, error) { return len(b), nil }
func (c readOnly) Close() error                { return nil }

// helloWith is a ClientHello with the extensions given, in one record.
func helloWith(extensions ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...) // version, random
	body = append(body, 0)                            // no session
	body = append(body, 0, 2, 0x13, 0x01)             // one cipher suite
	body = append(body, 1, 0)                         // no compression
	all := bytes.Join(extensions, nil)
	body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	message := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{contentHandshake, 3, 1, byte(len(message) >> 8), byte(len(message))}, message...)
}

func extension(typ uint16, data string) []byte {
	b := binary.BigEndian.AppendUint16(nil, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

var nameExtension = extension(extServerName, "\x00\x0f\x00\x00\x0callowed.test")

func TestOrdinaryHello(t *testing.T) {
	ordinary := clientHelloOf(t, &tls.Config{ServerName: "allowed.test", NextProtos: []string{"h2", "http/1.1"}})
	for name, test := range map[string]struct {
		hello []byte
		want  string // empty: left to crypto/tls
	}{
		"a client of today's is read":                     {ordinary, "allowed.test"},
		"what follows the hello is no part of it":         {append(bytes.Clone(ordinary), "more"...), "allowed.test"},
		"extensions that nobody knows are":                {helloWith(extension(0x1a1a, ""), nameExtension, extension(21, "\x00\x00")), "allowed.test"},
		"half a hello is not":                             {ordinary[:len(ordinary)/2], ""},
		"nor one in two records":                          {inRecords(ordinary, 100), ""},
		"nor one without a name":                          {helloWith(extension(21, "")), ""},
		"nor one without extensions":                      {helloWith(), ""},
		"nor one with two names":                          {helloWith(extension(extServerName, "\x00\x0e\x00\x00\x04a.be\x00\x00\x04c.de")), ""},
		"nor one with two server_name extensions":         {helloWith(nameExtension, nameExtension), ""},
		"nor one with a trailing dot":                     {helloWith(extension(extServerName, "\x00\x07\x00\x00\x04a.b.")), ""},
		"nor one with a name of another type":             {helloWith(extension(extServerName, "\x00\x07\x01\x00\x04a.be")), ""},
		"nor one with bytes after the names":              {helloWith(extension(extServerName, "\x00\x07\x00\x00\x04a.bex")), ""},
		"nor one with encrypted_client_hello":             {helloWith(nameExtension, extension(extensionECH, "\x00")), ""},
		"nor one whose other extensions are malformed":    {helloWith(nameExtension, extension(extALPN, "\x00\x00")), ""},
		"nor one with the same unknown extension twice":   {helloWith(nameExtension, extension(99, ""), extension(99, "")), ""},
		"nor one that is longer than its record":          {append(helloWith(nameExtension)[:9], 0xff), ""},
		"nor what is no handshake":                        {[]byte("GET / HTTP/1.1\r\n\r\n"), ""},
		"nor an empty record":                             {[]byte{contentHandshake, 3, 1, 0, 0}, ""},
		"nor one whose record has a second message after": {twoMessages(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := ordinaryHello(test.hello)
			if string(got) != test.want || ok != (test.want != "") {
				t.Errorf("%q, %v; want %q", got, ok, test.want)
			}
		})
	}
}

// twoMessages is a record with a ClientHello and the beginning of another message.
func twoMessages() []byte {
	b := append(helloWith(nameExtension), 1, 0, 0, 0)
	binary.BigEndian.PutUint16(b[3:], uint16(len(b)-5))
	return b
}

// FuzzOrdinaryHello: what the short cut accepts, crypto/tls reads alike.
func FuzzOrdinaryHello(f *testing.F) {
	f.Add(clientHelloOf(f, &tls.Config{ServerName: "allowed.test", NextProtos: []string{"h2", "http/1.1"}}))
	f.Add(clientHelloOf(f, &tls.Config{ServerName: "allowed.test", MaxVersion: tls.VersionTLS12}))
	f.Add(helloWith(nameExtension, extension(extStatusRequest, "\x01\x00\x00\x00\x00"), extension(extSessionTicket, "t"),
		extension(extPSKModes, "\x01\x01"), extension(extSupportedVersions, "\x02\x03\x04"), extension(extSCT, ""),
		extension(extKeyShare, "\x00\x05\x00\x1d\x00\x01k"), extension(extPointFormats, "\x01\x00"),
		extension(extRenegotiationInfo, "\x00"), extension(extALPN, "\x00\x03\x02h2"), extension(extMasterSecret, "")))
	f.Add(twoMessages())
	f.Fuzz(func(t *testing.T, b []byte) {
		name, ok := ordinaryHello(b)
		if !ok {
			return
		}
		info, ok := byCryptoTLS(b)
		if !ok || info.ServerName != string(name) {
			t.Fatalf("%q: %q, crypto/tls finds %q, %v", b, name, info.ServerName, ok)
		}
		if got, want := namedBy(string(name), false), namedBy(info.ServerName, false); got != want || got.finding == policy.FindingECH {
			t.Errorf("%+v, want %+v", got, want)
		}
		for _, e := range info.Extensions {
			if e == extensionECH {
				t.Errorf("%q: accepted with ECH", b)
			}
		}
	})
}
