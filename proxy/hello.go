//go:build linux

package proxy

import "slices"

// The extensions whose form crypto/tls checks, and so do we (IANA, TLS ExtensionType
// Values).
const (
	extServerName          = 0
	extStatusRequest       = 5
	extSupportedGroups     = 10
	extPointFormats        = 11
	extSignatureAlgorithms = 13
	extALPN                = 16
	extSCT                 = 18
	extMasterSecret        = 23
	extSessionTicket       = 35
	extPreSharedKey        = 41
	extEarlyData           = 42
	extSupportedVersions   = 43
	extCookie              = 44
	extPSKModes            = 45
	extSignaturesCert      = 50
	extKeyShare            = 51
	extQUICParameters      = 57
	extRenegotiationInfo   = 0xff01
)

// maxExtensions is how many extensions an ordinary ClientHello has at most.
const maxExtensions = 40

// maxRecord is how long a record may be (RFC 8446 section 5.1).
const maxRecord = 1 << 14

// ordinaryHello reads the server name of a ClientHello that is ordinary: whole, in
// one record of its own, with one server name, and with nothing that crypto/tls
// would object to. It allocates nothing. Whatever it says no to is left to
// crypto/tls, which may well accept it; what it accepts, crypto/tls reads alike
// (FuzzOrdinaryHello), so that this is a short cut and no second opinion.
func ordinaryHello(b []byte) (serverName []byte, ok bool) {
	// A record header: handshake, a version that may be one, a length.
	if len(b) < 5 || b[0] != contentHandshake || b[1] >= 0x10 {
		return nil, false
	}
	n := int(b[3])<<8 | int(b[4])
	if n > maxRecord || len(b) < 5+n {
		return nil, false
	}
	record := field(b[5 : 5+n])
	if typ, ok := record.number(1); !ok || typ != 1 {
		return nil, false
	}
	hello, ok := record.vector(3)
	if !ok || len(record) > 0 || !hello.skip(2+32) { // version, random
		return nil, false
	}
	_, session := hello.vector(1)
	suites, ciphers := hello.vector(2)
	_, compression := hello.vector(1)
	extensions, extended := hello.vector(2)
	if !session || !ciphers || len(suites)%2 != 0 || !compression || !extended || len(hello) > 0 {
		return nil, false
	}
	return serverNameIn(extensions)
}

// serverNameIn checks the extensions and gives the server name.
func serverNameIn(extensions field) (serverName []byte, ok bool) {
	var room [maxExtensions]int
	seen := room[:0]
	for len(extensions) > 0 {
		typ, typed := extensions.number(2)
		data, whole := extensions.vector(2)
		if !typed || !whole || len(seen) == maxExtensions || slices.Contains(seen, typ) {
			return nil, false
		}
		seen = append(seen, typ)
		if typ == extServerName {
			serverName, ok = data.serverName()
		} else {
			ok = data.ordinary(typ)
		}
		if !ok {
			return nil, false
		}
	}
	return serverName, serverName != nil
}

// serverName reads server_name (RFC 6066 section 3), of one name.
func (f field) serverName() (name []byte, ok bool) {
	list, whole := f.vector(2)
	typ, typed := list.number(1)
	name, named := list.vector(2)
	if !whole || len(f) > 0 || !typed || typ != 0 || !named || len(list) > 0 {
		return nil, false
	}
	return name, len(name) > 0 && name[len(name)-1] != '.'
}

// ordinary says that an extension has its form.
func (f field) ordinary(typ int) bool {
	switch typ {
	case extSupportedGroups, extSignatureAlgorithms, extSignaturesCert:
		return f.isListOf(2)
	case extSupportedVersions:
		return f.isListOf(1)
	case extALPN:
		list, ok := f.vector(2)
		return ok && len(f) == 0 && len(list) > 0 && list.areVectors(0, 1)
	case extKeyShare:
		list, ok := f.vector(2)
		return ok && len(f) == 0 && list.areVectors(2, 2)
	case extPointFormats, extPSKModes, extRenegotiationInfo:
		list, ok := f.vector(1)
		return ok && len(f) == 0 && (len(list) > 0 || typ != extPointFormats)
	case extStatusRequest:
		_, typed := f.number(1)
		_, responders := f.vector(2)
		_, extensions := f.vector(2)
		return typed && responders && extensions && len(f) == 0
	case extSCT, extMasterSecret:
		return len(f) == 0
	case extPreSharedKey, extEarlyData, extCookie, extQUICParameters, extensionECH:
		return false // not so ordinary
	}
	return true // extSessionTicket may be anything, and nobody reads the others
}

// field is what is left to read of a part of a message.
type field []byte

// number reads a number of so many bytes.
func (f *field) number(size int) (n int, ok bool) {
	if len(*f) < size {
		return 0, false
	}
	for _, b := range (*f)[:size] {
		n = n<<8 | int(b)
	}
	*f = (*f)[size:]
	return n, true
}

func (f *field) skip(n int) bool {
	if len(*f) < n {
		return false
	}
	*f = (*f)[n:]
	return true
}

// vector reads what a length of so many bytes is before (RFC 8446 section 3.4).
func (f *field) vector(size int) (v field, ok bool) {
	n, ok := f.number(size)
	if !ok || len(*f) < n {
		return nil, false
	}
	v, *f = (*f)[:n], (*f)[n:]
	return v, true
}

// isListOf says that f is one list, not empty, of numbers of two bytes, and that
// its length has so many bytes.
func (f field) isListOf(size int) bool {
	list, ok := f.vector(size)
	return ok && len(f) == 0 && len(list) > 0 && len(list)%2 == 0
}

// areVectors says that f consists of vectors that are not empty, whose lengths have
// so many bytes, each after a head.
func (f field) areVectors(head, size int) bool {
	for len(f) > 0 {
		if !f.skip(head) {
			return false
		}
		if v, ok := f.vector(size); !ok || len(v) == 0 {
			return false
		}
	}
	return true
}
