package firewall

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Key makes the kernel's form of a set key: the parts in order, each padded to
// four bytes. An address is a netip.Addr, a port a uint16, a protocol or ICMP
// type a uint8.
func Key(parts ...any) string {
	b := make([]byte, 0, 64) // stays on the stack: the string is its copy
	for _, p := range parts {
		switch v := p.(type) {
		case netip.Addr:
			if v.Is4() {
				four := v.As4()
				b = append(b, four[:]...)
			} else if v.IsValid() {
				sixteen := v.As16()
				b = append(b, sixteen[:]...)
			}
		case uint16:
			b = append(b, byte(v>>8), byte(v), 0, 0)
		case uint8:
			b = append(b, v, 0, 0, 0)
		case string:
			name := make([]byte, unix.IFNAMSIZ)
			copy(name, v)
			b = append(b, name...)
		default:
			panic(fmt.Sprintf("firewall.Key: a part of type %T", p))
		}
	}
	return string(b)
}

// size is the number of bytes that the field has in a key of its own.
func (f Field) size() int {
	return int(f.datatype().Bytes)
}

func (f Field) datatype() nftables.SetDatatype {
	return [...]nftables.SetDatatype{
		FieldIPv4: nftables.TypeIPAddr, FieldIPv6: nftables.TypeIP6Addr, FieldPort: nftables.TypeInetService,
		FieldProto: nftables.TypeInetProto, FieldICMPv6Type: nftables.TypeICMP6Type, FieldICMPType: nftables.TypeICMPType,
		FieldIface: nftables.TypeIFName,
	}[f]
}

func (f Field) String() string {
	switch f {
	case FieldICMPv6Type:
		return "icmpv6_type"
	case FieldIface:
		return "ifname"
	default:
		return f.datatype().Name
	}
}

func joinFields(fields []Field) string {
	words := make([]string, len(fields))
	for i, f := range fields {
		words[i] = f.String()
	}
	return strings.Join(words, " . ")
}

// wireKey is the key as the kernel takes it: of one field alone, unpadded.
func (s Set) wireKey(key string) string {
	if len(s.Fields) == 1 {
		return key[:s.Fields[0].size()]
	}
	return key
}

// text prints the element as nft does.
func (e Element) text(fields []Field) string {
	words := make([]string, len(fields))
	at := 0
	for i, f := range fields {
		n := (f.size() + 3) &^ 3
		from := e.Key[at : at+n]
		words[i] = f.text(from)
		if e.End != "" {
			if to := e.End[at : at+n]; to != from {
				words[i] = f.rangeText(from, to)
			}
		}
		at += n
	}
	return strings.Join(words, " . ")
}

func (f Field) text(b string) string {
	switch f {
	case FieldIPv4, FieldIPv6:
		a, _ := netip.AddrFromSlice([]byte(b))
		return a.String()
	case FieldPort:
		return strconv.Itoa(int(binary.BigEndian.Uint16([]byte(b))))
	case FieldProto:
		return protoName(b[0])
	case FieldICMPv6Type:
		return icmpv6TypeName(b[0])
	case FieldICMPType:
		return icmpTypeName(b[0])
	case FieldIface:
		return strconv.Quote(strings.TrimRight(b, "\x00"))
	}
	return fmt.Sprintf("%x", b)
}

// rangeText prints an address range that is a prefix as that prefix.
func (f Field) rangeText(from, to string) string {
	if f == FieldIPv4 || f == FieldIPv6 {
		a, _ := netip.AddrFromSlice([]byte(from))
		for bits := range a.BitLen() + 1 {
			p := netip.PrefixFrom(a, bits)
			if p.Masked() == p && lastOf(p) == to {
				return p.String()
			}
		}
	}
	return f.text(from) + "-" + f.text(to)
}

// lastOf is the last address of a prefix, as bytes.
func lastOf(p netip.Prefix) string {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return string(b)
}

func protoName(p uint8) string {
	switch p {
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_GRE:
		return "gre"
	case unix.IPPROTO_ICMPV6:
		return "ipv6-icmp"
	}
	return strconv.Itoa(int(p))
}

func icmpTypeName(t uint8) string {
	switch t {
	case 0:
		return "echo-reply"
	case 3:
		return "destination-unreachable"
	case 8:
		return "echo-request"
	case 11:
		return "time-exceeded"
	case 12:
		return "parameter-problem"
	}
	return strconv.Itoa(int(t))
}

func icmpv6TypeName(t uint8) string {
	switch t {
	case 1:
		return "destination-unreachable"
	case 2:
		return "packet-too-big"
	case 3:
		return "time-exceeded"
	case 4:
		return "parameter-problem"
	case 128:
		return "echo-request"
	case 129:
		return "echo-reply"
	case 133:
		return "nd-router-solicit"
	case 134:
		return "nd-router-advert"
	case 135:
		return "nd-neighbor-solicit"
	case 136:
		return "nd-neighbor-advert"
	}
	return strconv.Itoa(int(t))
}
