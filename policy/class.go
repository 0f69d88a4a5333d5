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

// ClassOf classifies addr, looking through the forms that embed an IPv4 address.
func ClassOf(addr netip.Addr) Class { return Reserved }
