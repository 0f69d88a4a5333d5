package firewall

import (
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TCPReset is `tcp flags rst`.
func TCPReset() Statement {
	const rst = 0x04
	return Statement{text: "tcp flags rst", exprs: append(L4(unix.IPPROTO_TCP).exprs,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{rst}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0}},
	)}
}

// TCPOpens is `tcp flags syn / syn,ack`: the first packet of a connection.
func TCPOpens() Statement {
	const syn, ack = 0x02, 0x10
	return Statement{text: "tcp flags syn / syn,ack", exprs: append(L4(unix.IPPROTO_TCP).exprs,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}},
	)}
}

// IPOptions is `ip hdrlength > 5`.
func IPOptions() Statement {
	return Statement{text: "ip hdrlength > 5", exprs: append(nfproto(unix.NFPROTO_IPV4),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{0x0f}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: []byte{5}},
	)}
}

// RoutingHeader is `exthdr rt exists`, IPv6's source route.
func RoutingHeader() Statement {
	const present = 1 // NFT_EXTHDR_F_PRESENT
	return Statement{text: "exthdr rt exists", exprs: append(nfproto(unix.NFPROTO_IPV6),
		&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_ROUTING, Len: 1, Flags: present, Op: expr.ExthdrOpIpv6},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}},
	)}
}

// The ICMP types that we name.
const (
	icmpUnreachable, icmpEcho, icmpTimeExceeded, icmpParameter       = 3, 8, 11, 12
	icmp6Unreachable, icmp6TooBig, icmp6TimeExceeded, icmp6Parameter = 1, 2, 3, 4
	icmp6Echo, icmp6RouterSolicit, icmp6RouterAdvert                 = 128, 133, 134
	icmp6NeighborSolicit, icmp6NeighborAdvert                        = 135, 136
)

// ICMPType is `icmp type T` or `icmp type { T, … }`.
func ICMPType(types ...uint8) Statement {
	return icmpType("icmp", FieldICMPType, unix.IPPROTO_ICMP, types)
}

// ICMPv6Type is `icmpv6 type T` or `icmpv6 type { T, … }`.
func ICMPv6Type(types ...uint8) Statement {
	return icmpType("icmpv6", FieldICMPv6Type, unix.IPPROTO_ICMPV6, types)
}

func icmpType(word string, field Field, proto uint8, types []uint8) Statement {
	set := &Set{Fields: []Field{field}}
	names := make([]string, len(types))
	for i, t := range types {
		set.Elements = append(set.Elements, Element{Key: Key(t)})
		names[i] = field.text(Key(t))
	}
	exprs := append(L4(proto).exprs, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1})
	if len(types) == 1 {
		return Statement{text: word + " type " + names[0], exprs: append(exprs, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: types})}
	}
	return Statement{
		text:  word + " type { " + strings.Join(names, ", ") + " }",
		exprs: append(exprs, &expr.Lookup{SourceRegister: 1}), set: set,
	}
}

// HopLimit255 is `ip6 hoplimit 255`: the packet was not forwarded (RFC 4861
// section 6.1.1).
func HopLimit255() Statement {
	return Statement{text: "ip6 hoplimit 255", exprs: append(nfproto(unix.NFPROTO_IPV6),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 7, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{255}},
	)}
}

// IsARP is `meta protocol arp`, in the netdev family.
func IsARP() Statement {
	return Statement{text: "meta protocol arp", exprs: metaCmp(expr.MetaKeyPROTOCOL, expr.CmpOpEq, big16(unix.ETH_P_ARP))}
}
