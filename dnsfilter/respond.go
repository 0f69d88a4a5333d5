package dnsfilter

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// ednsSize is the datagram size that we announce, to clients and upstreams:
// what passes every path without fragments (DNS flag day 2020).
const ednsSize = 1232

// Header flags (RFC 1035 section 4.1.1).
const (
	flagQR = 1 << 15
	flagTC = 1 << 9
	flagRD = 1 << 8
	flagRA = 1 << 7
	flagCD = 1 << 4
)

// denialTTL is how long a denial may be remembered, in seconds: a swap must be
// seen soon, and a resolver that gets no SOA asks again at once.
const denialTTL = 1

// denialSOA is the authority record of every denial: owned by the root, so
// that it is above whatever was asked (RFC 2308 section 3).
var denialSOA = sections{body: buildDenialSOA(), nsRRs: 1}

func buildDenialSOA() string {
	b := []byte{0, 0, byte(dns.TypeSOA), 0, dns.ClassINET, 0, 0, 0, denialTTL}
	names := []byte("\x06denied\x05exeat\x07invalid\x00\x0ahostmaster\x05exeat\x07invalid\x00")
	b = binary.BigEndian.AppendUint16(b, uint16(len(names)+20))
	b = append(b, names...)
	for _, v := range [...]uint32{1, 3600, 600, 86400, denialTTL} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return string(b)
}

// answer is what of a reply is the same for everybody who asks.
type answer struct {
	rcode int
	sections
}

// reply is what to answer; respond puts it on the wire.
type reply struct {
	answer
	// age is what the TTLs have lost.
	age uint32
	// ede is the Extended DNS Error, where hasEDE (code 0 is one too); its text is
	// edeText and, after it, edeID.
	hasEDE         bool
	edeCode        uint16
	edeText, edeID string
}

// respond appends the answer to q. stream says that it goes over TCP, where size
// does not bind; over UDP what does not fit is sent empty with TC set.
func respond(out []byte, q *question, r *reply, stream bool) []byte {
	start := len(out)
	flags := flagQR | q.flags&(flagRD|flagCD) | flagRA | uint16(r.rcode&0xF)
	if q.flags>>11&0xF != dns.OpcodeQuery {
		flags |= q.flags & (0xF << 11)
	}
	var opt int
	if q.edns {
		opt = optFixedLen
		if r.hasEDE {
			opt += 6 + len(r.edeText) + len(r.edeID)
		}
	}
	shown := r.sections
	if room := q.size - headerLen - len(q.wire); !stream && len(shown.body)+opt > room {
		if len(shown.body)+optFixedLen <= room && q.edns {
			opt = optFixedLen // the answer matters more than the text beside it
		} else {
			flags |= flagTC
			shown = sections{}
		}
	}
	var header [headerLen]byte
	binary.BigEndian.PutUint16(header[0:], q.id)
	binary.BigEndian.PutUint16(header[2:], flags)
	if len(q.wire) > 0 {
		header[5] = 1
	}
	binary.BigEndian.PutUint16(header[6:], shown.answers)
	binary.BigEndian.PutUint16(header[8:], shown.nsRRs)
	if opt > 0 {
		header[11] = 1
	}
	out = append(out, header[:]...)
	out = append(out, q.wire...)
	at := len(out)
	out = append(out, shown.body...)
	if r.age > 0 {
		for _, off := range shown.each {
			field := out[at+off+4:]
			ttl := binary.BigEndian.Uint32(field)
			binary.BigEndian.PutUint32(field, max(ttl, r.age+1)-r.age)
		}
	}
	if opt > 0 {
		out = appendOPT(out, r, opt > optFixedLen)
	}
	if len(out)-start > dns.MaxMsgSize { // cannot be: bodies are bounded when they are packed
		return append(out[:start], header[0], header[1], byte(flagQR>>8), dns.RcodeServerFailure, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	return out
}

// appendOPT writes our OPT record (RFC 6891) with, where withEDE, one Extended
// DNS Error (RFC 8914 section 2).
func appendOPT(out []byte, r *reply, withEDE bool) []byte {
	out = append(out, 0, 0, byte(dns.TypeOPT), ednsSize>>8, ednsSize&0xFF, byte(r.rcode>>4), 0, 0, 0)
	if !withEDE {
		return append(out, 0, 0)
	}
	size := len(r.edeText) + len(r.edeID)
	out = binary.BigEndian.AppendUint16(out, uint16(6+size))
	out = binary.BigEndian.AppendUint16(out, dns.EDNS0EDE)
	out = binary.BigEndian.AppendUint16(out, uint16(2+size))
	out = binary.BigEndian.AppendUint16(out, r.edeCode)
	return append(append(out, r.edeText...), r.edeID...)
}
