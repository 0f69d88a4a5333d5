package policy

import "net/netip"

// Class is the class of an address (policy.md section 4). The zero value is
// Reserved, which is special.
type Class uint8

// The classes. Every class but Public is special.
const (
	Reserved Class = iota
	Public
	Loopback
	Unspecified
	Private
	LinkLocal
	Metadata
	Multicast
	Broadcast
)

// String names the class as policy.md section 4 does.
func (c Class) String() string {
	switch c {
	case Public:
		return "public"
	case Loopback:
		return "loopback"
	case Unspecified:
		return "unspecified"
	case Private:
		return "private"
	case LinkLocal:
		return "link-local"
	case Metadata:
		return "metadata"
	case Multicast:
		return "multicast"
	case Broadcast:
		return "broadcast"
	case Reserved:
		return "reserved"
	}
	return "reserved"
}

// Special says that addresses of the class are dropped from answers and never
// dialled, unless something lifts them.
func (c Class) Special() bool { return c != Public }

// ClassOf classifies addr, looking through the forms that embed an IPv4 address.
// The invalid address is Reserved. A zone is ignored.
//
// Sources: the IANA special-purpose registries (RFC 6890) and, for the metadata
// services, their operators' manuals. Where a registry calls a block "globally
// reachable" but no host for the sandbox lives there (anycast for 6to4, PCP and
// TURN, ORCHID, SRv6 identifiers), the block is Reserved: the narrower answer.
// The documentation ranges are Public: labs use them as if they were.
func ClassOf(addr netip.Addr) Class {
	switch {
	case !addr.IsValid():
		return Reserved
	case addr.Is4():
		return class4(addr.As4())
	case addr.Is4In6():
		return class4(addr.Unmap().As4())
	}
	return class6(addr.As16())
}

func class4(a [4]byte) Class {
	switch {
	case a == [4]byte{}:
		return Unspecified // connect(2) takes it for loopback
	case a == [4]byte{100, 100, 100, 200}, // Alibaba Cloud
		a == [4]byte{168, 63, 129, 16}, // Azure WireServer
		a[0] == 169 && a[1] == 254:     // RFC 3927; every cloud's 169.254.169.254
		return Metadata
	case a[0] == 0: // RFC 791 "this network"
		return Reserved
	case a[0] == 127: // RFC 1122
		return Loopback
	case a[0] == 10, // RFC 1918
		a[0] == 172 && a[1]&0xf0 == 16,
		a[0] == 192 && a[1] == 168,
		a[0] == 100 && a[1]&0xc0 == 64, // RFC 6598, carrier-grade NAT
		a[0] == 198 && a[1]&0xfe == 18: // RFC 2544, benchmarking
		return Private
	case a[0] == 192 && a[1] == 0 && a[2] == 0, // RFC 6890; Oracle's 192.0.0.192 too
		a[0] == 192 && a[1] == 88 && a[2] == 99: // RFC 7526, was 6to4 anycast
		return Reserved
	case a[0]&0xf0 == 224: // RFC 5771
		return Multicast
	case a == [4]byte{255, 255, 255, 255}: // RFC 8190
		return Broadcast
	case a[0]&0xf0 == 240: // RFC 1112
		return Reserved
	}
	return Public
}

func class6(a [16]byte) Class {
	class := outer6(a)
	// ISATAP (RFC 5214) embeds in the interface identifier, under any prefix.
	if isatap(a) {
		class = stricter(class, class4(tail(a)))
	}
	return class
}

// outer6 classifies by prefix.
func outer6(a [16]byte) Class {
	switch {
	case a == [16]byte{}:
		return Unspecified
	case a == [16]byte{15: 1}:
		return Loopback
	case zero(a[:12]): // ::/96, IPv4-compatible (RFC 4291 section 2.5.5.1)
		// Deprecated and unroutable: a public address in it is still Reserved.
		if embedded := class4(tail(a)); embedded != Public {
			return embedded
		}
		return Reserved
	case a[0] == 0 && a[1] == 0x64 && a[2] == 0xff && a[3] == 0x9b:
		return nat64(a)
	case a[0] == 0xfd && a[1] == 0x00 && a[2] == 0x0e && a[3] == 0xc2: // fd00:ec2::/32, Amazon
		return Metadata
	case a[0]&0xfe == 0xfc: // RFC 4193, unique local
		return Private
	case a[0] == 0xfe && a[1]&0xc0 == 0x80: // RFC 4291
		return LinkLocal
	case a[0] == 0xff: // RFC 4291
		return Multicast
	case a[0] == 0x20 && a[1] == 0x02: // 2002::/16, 6to4 (RFC 3056)
		return class4([4]byte(a[2:6]))
	case a[0] == 0x20 && a[1] == 0x01 && a[2] == 0 && a[3] == 0:
		return teredo(a)
	case a[0] == 0x20 && a[1] == 0x01 && a[2] == 0 && a[3] == 2 && a[4] == 0 && a[5] == 0:
		return Private // 2001:2::/48, benchmarking (RFC 5180)
	case a[0] == 0x20 && a[1] == 0x01 && a[2]&0xfe == 0: // 2001::/23, RFC 2928
		return Reserved
	case a[0]&0xe0 == 0x20: // 2000::/3, global unicast
		return Public
	}
	return Reserved
}

// nat64 classifies 64:ff9b::/96 (RFC 6052), 64:ff9b:1::/48 (RFC 8215) and what
// is reserved between them.
func nat64(a [16]byte) Class {
	if zero(a[4:12]) {
		return class4(tail(a))
	}
	if a[4] != 0 || a[5] != 1 {
		return Reserved
	}
	// Whatever the translator there may make of it counts, the strictest first.
	class := Public
	forms, n := localForms(a)
	for _, form := range forms[:n] {
		class = stricter(class, class4(form))
	}
	return class
}

// teredo classifies 2001::/32 (RFC 4380) by its server and its client, whose
// address is written inverted.
func teredo(a [16]byte) Class {
	client := tail(a)
	for i := range client {
		client[i] ^= 0xff
	}
	return stricter(class4([4]byte(a[4:8])), class4(client))
}

func tail(a [16]byte) [4]byte { return [4]byte(a[12:16]) }

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// stricter is the class that is harder to lift: anything special before Private,
// Private before Public. The first wins a tie.
func stricter(a, b Class) Class {
	rank := func(c Class) int {
		switch c {
		case Public:
			return 0
		case Private:
			return 1
		case Reserved, Loopback, Unspecified, LinkLocal, Metadata, Multicast, Broadcast:
			return 2
		}
		return 2
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}
