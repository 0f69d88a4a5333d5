package firewall

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Byte orders, from nftables-notes: addresses, ports and ether types are
// big-endian in the kernel's registers; marks, ct bits, fib types and cgroup
// ids are native.

func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
func native64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
func big16(v uint16) []byte    { return binary.BigEndian.AppendUint16(nil, v) }

// eq is the word before a compared value, and the comparison.
func eq(same bool) (string, expr.CmpOp) {
	if same {
		return "", expr.CmpOpEq
	}
	return "!= ", expr.CmpOpNeq
}

func metaCmp(key expr.MetaKey, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

func iface(word string, key expr.MetaKey, name string, same bool) Statement {
	not, op := eq(same)
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return Statement{text: fmt.Sprintf("%s %s%q", word, not, name), exprs: metaCmp(key, op, padded)}
}

// OutIface is `oifname "NAME"`.
func OutIface(name string) Statement { return iface("oifname", expr.MetaKeyOIFNAME, name, true) }

// NotOutIface is `oifname != "NAME"`.
func NotOutIface(name string) Statement { return iface("oifname", expr.MetaKeyOIFNAME, name, false) }

// InIface is `iifname "NAME"`.
func InIface(name string) Statement { return iface("iifname", expr.MetaKeyIIFNAME, name, true) }

// NotInIface is `iifname != "NAME"`.
func NotInIface(name string) Statement { return iface("iifname", expr.MetaKeyIIFNAME, name, false) }

// IsIPv6 is `meta nfproto ipv6`.
func IsIPv6() Statement {
	return Statement{text: "meta nfproto ipv6", exprs: nfproto(unix.NFPROTO_IPV6)}
}

// IsIPv4 is `meta nfproto ipv4`.
func IsIPv4() Statement {
	return Statement{text: "meta nfproto ipv4", exprs: nfproto(unix.NFPROTO_IPV4)}
}

func nfproto(p byte) []expr.Any { return metaCmp(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{p}) }

// L4 is `meta l4proto P` or `meta l4proto { P, … }`, protocols by number.
func L4(protocols ...uint8) Statement {
	names := make([]string, len(protocols))
	set := &Set{Fields: []Field{FieldProto}}
	for i, p := range protocols {
		names[i] = protoName(p)
		set.Elements = append(set.Elements, Element{Key: Key(p)})
	}
	if len(protocols) == 1 {
		return Statement{text: "meta l4proto " + names[0], exprs: metaCmp(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{protocols[0]})}
	}
	return Statement{
		text:  "meta l4proto { " + strings.Join(names, ", ") + " }",
		exprs: []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Lookup{SourceRegister: 1}},
		set:   set,
	}
}

// TCPorUDP is `meta l4proto { tcp, udp }`.
func TCPorUDP() Statement { return L4(unix.IPPROTO_TCP, unix.IPPROTO_UDP) }

// portMatch compares a 16 bit field of the transport header. proto 0 is "th"
// (an L4 match must stand before); else the protocol is matched too.
func portMatch(proto uint8, offset uint32, field string, same bool, ports []uint16) Statement {
	word := "th"
	var exprs []expr.Any
	if proto != 0 {
		word = protoName(proto)
		exprs = L4(proto).exprs
	}
	exprs = append(exprs, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2})
	not, op := eq(same)
	if len(ports) == 1 {
		return Statement{
			text:  fmt.Sprintf("%s %s %s%d", word, field, not, ports[0]),
			exprs: append(exprs, &expr.Cmp{Op: op, Register: 1, Data: big16(ports[0])}),
		}
	}
	set := &Set{Fields: []Field{FieldPort}}
	for _, p := range ports {
		set.Elements = append(set.Elements, Element{Key: Key(p)})
	}
	return Statement{
		text:  fmt.Sprintf("%s %s %s{ %s }", word, field, not, set.elementList()),
		exprs: append(exprs, &expr.Lookup{SourceRegister: 1, Invert: !same}),
		set:   set,
	}
}

// DPort is `th dport P`; the rule must have matched L4 before.
func DPort(ports ...uint16) Statement { return portMatch(0, 2, "dport", true, ports) }

// NotDPort is `th dport != P`.
func NotDPort(ports ...uint16) Statement { return portMatch(0, 2, "dport", false, ports) }

// SPort is `th sport P`.
func SPort(ports ...uint16) Statement { return portMatch(0, 0, "sport", true, ports) }

// NotSPort is `th sport != P`.
func NotSPort(ports ...uint16) Statement { return portMatch(0, 0, "sport", false, ports) }

// TCPDPort is `tcp dport P`.
func TCPDPort(ports ...uint16) Statement {
	return portMatch(unix.IPPROTO_TCP, 2, "dport", true, ports)
}

// NotTCPDPort is `tcp dport != P`.
func NotTCPDPort(ports ...uint16) Statement {
	return portMatch(unix.IPPROTO_TCP, 2, "dport", false, ports)
}

// UDPDPort is `udp dport P`.
func UDPDPort(ports ...uint16) Statement {
	return portMatch(unix.IPPROTO_UDP, 2, "dport", true, ports)
}

// NotUDPDPort is `udp dport != P`.
func NotUDPDPort(ports ...uint16) Statement {
	return portMatch(unix.IPPROTO_UDP, 2, "dport", false, ports)
}

// UDPSPort is `udp sport P`.
func UDPSPort(ports ...uint16) Statement {
	return portMatch(unix.IPPROTO_UDP, 0, "sport", true, ports)
}

// hostPrefix is the prefix of one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// addrPayload loads the source or destination address, after its family.
func addrPayload(v4, source bool, register uint32) []expr.Any {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 16}
	family := byte(unix.NFPROTO_IPV6)
	if source {
		p.Offset = 8
	}
	if v4 {
		p.Offset, p.Len, family = 16, 4, unix.NFPROTO_IPV4
		if source {
			p.Offset = 12
		}
	}
	return append(nfproto(family), p)
}

func addrMatch(source, same bool, prefix netip.Prefix) Statement {
	field := "daddr"
	if source {
		field = "saddr"
	}
	v4 := prefix.Addr().Is4()
	not, op := eq(same)
	exprs := addrPayload(v4, source, 1)
	value := prefix.Addr().AsSlice()
	text := prefix.Addr().String()
	if prefix.Bits() < prefix.Addr().BitLen() {
		text = prefix.String()
		// A whole number of bytes is compared by loading fewer, as nft does.
		if load := exprs[len(exprs)-1].(*expr.Payload); prefix.Bits()%8 == 0 {
			load.Len = uint32(prefix.Bits() / 8)
			value = value[:load.Len]
		} else {
			mask := make([]byte, len(value))
			for i := range prefix.Bits() {
				mask[i/8] |= 1 << (7 - i%8)
			}
			exprs = append(exprs, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: load.Len, Mask: mask, Xor: make([]byte, len(value))})
		}
	}
	return Statement{
		text:  fmt.Sprintf("%s %s %s%s", ipWord(v4), field, not, text),
		exprs: append(exprs, &expr.Cmp{Op: op, Register: 1, Data: value}),
	}
}

func ipWord(v4 bool) string {
	if v4 {
		return "ip"
	}
	return "ip6"
}

func icmpWord(proto uint8) string {
	if proto == unix.IPPROTO_ICMP {
		return "icmp"
	}
	return "icmpv6"
}

// To is `ip daddr PREFIX` or `ip6 daddr PREFIX`.
func To(p netip.Prefix) Statement { return addrMatch(false, true, p) }

// NotTo is `ip daddr != PREFIX`, true of no packet of the other family.
func NotTo(p netip.Prefix) Statement { return addrMatch(false, false, p) }

// From is `ip saddr PREFIX` or `ip6 saddr PREFIX`.
func From(p netip.Prefix) Statement { return addrMatch(true, true, p) }

// NotFrom is `ip saddr != PREFIX`, true of no packet of the other family.
func NotFrom(p netip.Prefix) Statement { return addrMatch(true, false, p) }

// InSet looks the packet's destination up in a named set, whose first field is
// an address and whose others are ports and protocols; of a set with a port,
// proto says of which protocol (0: whichever the rule has matched before; an
// ICMP type must have been matched).
func InSet(set Set, proto uint8) Statement { return inSet(set, proto, "daddr", "dport", 2) }

// FromSet is InSet for the packet's source address and port.
func FromSet(set Set, proto uint8) Statement { return inSet(set, proto, "saddr", "sport", 0) }

func inSet(set Set, proto uint8, side, port string, offset uint32) Statement {
	v4 := set.Fields[0] == FieldIPv4
	register := uint32(1)
	if len(set.Fields) > 1 {
		register = concatBase
	}
	word := "th"
	var exprs []expr.Any
	switch proto {
	case 0:
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		// Echo has no ports; what stands in their place is in the range of them all.
		word, port, offset = icmpWord(proto), "checksum", 2
	default:
		word, exprs = protoName(proto), L4(proto).exprs
	}
	words := []string{ipWord(v4) + " " + side}
	exprs = append(exprs, addrPayload(v4, side == "saddr", register)...)
	next := register + 4
	if v4 {
		next = register + 1
	}
	for _, f := range set.Fields[1:] {
		if f == FieldPort {
			words = append(words, word+" "+port)
			exprs = append(exprs, &expr.Payload{DestRegister: next, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2})
		} else {
			words = append(words, "meta l4proto")
			exprs = append(exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next})
		}
		next++
	}
	return Statement{
		text:  strings.Join(words, " . ") + " @" + set.Name,
		exprs: append(exprs, &expr.Lookup{SourceRegister: register, SetName: set.Name}),
	}
}

// concatBase is NFT_REG32_00, the first of the 4 byte registers.
const concatBase = 8
