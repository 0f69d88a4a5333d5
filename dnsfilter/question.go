package dnsfilter

import (
	"encoding/binary"
	"errors"
	"net"

	"github.com/miekg/dns"
)

// Sizes of the wire format (RFC 1035 section 4.1, RFC 6891).
const (
	headerLen   = 12
	maxNameLen  = 255 // with its length bytes and the root's
	maxLabelLen = 63
	optFixedLen = 11 // an OPT record without options
	// minUDPSize is what a client without EDNS can take.
	minUDPSize = 512
	// maxUDPSize bounds what a client with EDNS is sent: clients are on this host.
	maxUDPSize = 4096
)

// question is one client message, taken apart. Its wire slice borrows the
// message; everything else is its own.
type question struct {
	id    uint16
	flags uint16
	// wire is the question section as the client wrote it (its letter case is
	// echoed); empty when the message broke before its end.
	wire  []byte
	qtype uint16
	// lower is the name in text form without the last dot, in lower case; its
	// bytes are in buf.
	lower []byte
	buf   [maxNameLen]byte
	edns  bool
	// size is what the client can take in one datagram.
	size int
	// from is who asks; it is good as long as the message.
	from net.Addr
}

// fault is what is wrong with a message: the answer's code, and for the log a word.
type fault struct {
	rcode int
	text  string
}

func (f *fault) Error() string { return f.text }

// errNotQuestion marks a message that must not be answered at all: too short
// to have an id, or itself a reply (answering replies makes loops).
var errNotQuestion = errors.New("not a question")

// parse reads one client message strictly: exactly one question of class IN,
// nothing else but one OPT record, and no byte after it. Labels are judged on the
// wire, where a dot or a NUL inside one cannot hide (bypass B61). On a *fault, q
// holds as much as was read.
func (q *question) parse(msg []byte) error {
	q.wire, q.lower, q.edns, q.size = nil, q.buf[:0], false, minUDPSize
	if len(msg) < headerLen {
		return errNotQuestion
	}
	q.id = binary.BigEndian.Uint16(msg)
	q.flags = binary.BigEndian.Uint16(msg[2:])
	if q.flags&(1<<15) != 0 {
		return errNotQuestion
	}
	if q.flags>>11&0xF != dns.OpcodeQuery {
		return &fault{dns.RcodeNotImplemented, "opcode other than QUERY"}
	}
	if len(msg) >= maxQuery {
		return &fault{dns.RcodeFormatError, "longer than any question"}
	}
	counts := binary.BigEndian.Uint64(msg[4:]) // QD, AN, NS, AR
	if counts>>16 != 1<<32 || counts&0xFFFF > 1 {
		return &fault{dns.RcodeFormatError, "sections other than one question and one OPT"}
	}
	end, err := q.parseName(msg)
	if err != nil {
		return err
	}
	if len(msg) < end+4 {
		return &fault{dns.RcodeFormatError, "question cut short"}
	}
	q.qtype = binary.BigEndian.Uint16(msg[end:])
	class := binary.BigEndian.Uint16(msg[end+2:])
	end += 4
	q.wire = msg[headerLen:end]
	if counts&0xFFFF == 1 {
		if end, err = q.parseOPT(msg, end); err != nil {
			return err
		}
	}
	if end != len(msg) {
		return &fault{dns.RcodeFormatError, "bytes after the message"}
	}
	if class != dns.ClassINET {
		return &fault{dns.RcodeRefused, "class other than IN"}
	}
	return nil
}

// parseName reads the question's name and gives the offset after it. A question
// is the first name of a message, so a compression pointer has nothing to point at.
func (q *question) parseName(msg []byte) (int, error) {
	off := headerLen
	for {
		if off >= len(msg) {
			return 0, &fault{dns.RcodeFormatError, "name cut short"}
		}
		n := int(msg[off])
		off++
		if n == 0 {
			break
		}
		if n > maxLabelLen {
			return 0, &fault{dns.RcodeFormatError, "label too long or compressed"}
		}
		if off+n > len(msg) {
			return 0, &fault{dns.RcodeFormatError, "name cut short"}
		}
		if off+n-headerLen >= maxNameLen {
			return 0, &fault{dns.RcodeFormatError, "name too long"}
		}
		if len(q.lower) > 0 {
			q.lower = append(q.lower, '.')
		}
		for _, c := range msg[off : off+n] {
			if c == '.' || c == 0 {
				return 0, &fault{dns.RcodeFormatError, "dot or NUL inside a label"}
			}
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			q.lower = append(q.lower, c)
		}
		off += n
	}
	return off, nil
}

// parseOPT reads the one additional record, which must be an OPT (RFC 6891)
// with whole options. None of them is looked at or passed on.
func (q *question) parseOPT(msg []byte, off int) (int, error) {
	if len(msg) < off+optFixedLen || msg[off] != 0 || binary.BigEndian.Uint16(msg[off+1:]) != dns.TypeOPT {
		return 0, &fault{dns.RcodeFormatError, "additional record other than OPT"}
	}
	q.edns = true
	q.size = min(max(int(binary.BigEndian.Uint16(msg[off+3:])), minUDPSize), maxUDPSize)
	version := msg[off+6]
	options := int(binary.BigEndian.Uint16(msg[off+9:]))
	off += optFixedLen
	end := off + options
	if end > len(msg) {
		return 0, &fault{dns.RcodeFormatError, "OPT cut short"}
	}
	for off < end {
		if end-off < 4 {
			return 0, &fault{dns.RcodeFormatError, "option cut short"}
		}
		off += 4 + int(binary.BigEndian.Uint16(msg[off+2:]))
	}
	if off != end {
		return 0, &fault{dns.RcodeFormatError, "option cut short"}
	}
	if version != 0 {
		return 0, &fault{dns.RcodeBadVers, "EDNS version other than 0"}
	}
	return off, nil
}

// typeWord is the query type as the log writes it.
func typeWord(t uint16) string { return dns.Type(t).String() }
