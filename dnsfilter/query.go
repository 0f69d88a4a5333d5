package dnsfilter

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/miekg/dns"
)

// query is a question as we ask it upstream, rebuilt from nothing: a random id,
// random letter case (draft-vixie-dnsext-dns0x20), our own EDNS, none of the
// client's options or flags.
type query struct {
	buf [headerLen + maxNameLen + 4 + optFixedLen]byte
	// n is its length, question the end of its question section.
	n, question int
	random      [16 + maxNameLen/8]byte
}

// build encodes name (text form, no escapes, "." for the root).
func (w *query) build(name string, qtype uint16, edns bool) error {
	if _, err := rand.Read(w.random[:]); err != nil {
		return fmt.Errorf("draw a query id: %w", err)
	}
	b := append(w.buf[:0], w.random[0], w.random[1], flagRD>>8, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	bit := 16
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" && name == "." {
			break
		}
		if len(label) == 0 || len(label) > maxLabelLen || len(b)+1+len(label)-headerLen >= maxNameLen {
			return fmt.Errorf("name %q does not fit the wire", name)
		}
		b = append(b, byte(len(label)))
		for i := range len(label) {
			c := label[i]
			if 'a' <= c && c <= 'z' {
				c -= w.random[bit/8] >> (bit % 8) & 1 << 5
				bit++
			}
			b = append(b, c)
		}
	}
	b = append(b, 0)
	b = binary.BigEndian.AppendUint16(b, qtype)
	b = binary.BigEndian.AppendUint16(b, dns.ClassINET)
	w.question = len(b)
	if edns {
		b[11] = 1
		b = append(b, 0, 0, byte(dns.TypeOPT), ednsSize>>8, ednsSize&0xFF, 0, 0, 0, 0, 0, 0)
	}
	w.n = len(b)
	return nil
}

func (w *query) bytes() []byte { return w.buf[:w.n] }

func (w *query) id() uint16 { return binary.BigEndian.Uint16(w.buf[:]) }

// slot is a random number below n, for the choice of a source port.
func (w *query) slot(n int) int {
	return int(binary.BigEndian.Uint32(w.random[len(w.random)-4:]) % uint32(n))
}

// match says whose reply a message is.
type match uint8

const (
	// matchNone is somebody else's, or a forger's: it is ignored and waited on.
	matchNone match = iota
	// matchFolded is ours but for the letter case: a resolver that does not keep
	// it, or a forger who did not see the question. Good enough over a stream only.
	matchFolded
	matchExact
)

// match compares id, question and letter case (bypass B43).
func (w *query) match(msg []byte) match {
	if len(msg) < w.question || msg[0] != w.buf[0] || msg[1] != w.buf[1] {
		return matchNone
	}
	const opcode = 0xF << 3
	if msg[2]&(flagQR>>8) == 0 || msg[2]&opcode != 0 || msg[4] != 0 || msg[5] != 1 {
		return matchNone
	}
	ours, theirs := w.buf[headerLen:w.question], msg[headerLen:w.question]
	switch {
	case bytes.Equal(ours, theirs):
		return matchExact
	case equalFoldASCII(ours, theirs):
		return matchFolded
	default:
		return matchNone
	}
}

// equalFoldASCII compares wire questions without letter case. Length bytes are
// below 64 and so never letters; type and class must fit exactly.
func equalFoldASCII(a, b []byte) bool {
	if len(a) != len(b) || !bytes.Equal(a[len(a)-4:], b[len(b)-4:]) {
		return false
	}
	for i := range len(a) - 4 {
		if lowerByte(a[i]) != lowerByte(b[i]) {
			return false
		}
	}
	return true
}

func lowerByte(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// truncated says whether a reply that matched has TC set.
func truncated(msg []byte) bool { return msg[2]&(flagTC>>8) != 0 }
