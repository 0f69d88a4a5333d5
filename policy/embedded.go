package policy

import "net/netip"

// Where translators and tunnels keep the IPv4 address that they send to.
var (
	prefixNAT64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	prefixNAT64Local = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	prefix6to4       = netip.MustParsePrefix("2002::/16")      // RFC 3056
	prefixTeredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
	prefixCompatible = netip.MustParsePrefix("::/96")          // RFC 4291 section 2.5.5.1
)

// embedded gives the IPv4 address that is reached by way of an IPv6 one: who is
// denied it is denied it in this form too (bypass B20).
func embedded(addr netip.Addr) (netip.Addr, bool) {
	if !addr.Is6() {
		return netip.Addr{}, false
	}
	a := addr.As16()
	switch {
	case prefix6to4.Contains(addr):
		return netip.AddrFrom4([4]byte(a[2:6])), true
	case prefixTeredo.Contains(addr):
		client := tail(a) // written inverted
		for i := range client {
			client[i] ^= 0xff
		}
		return netip.AddrFrom4(client), true
	case prefixNAT64.Contains(addr), prefixNAT64Local.Contains(addr), prefixCompatible.Contains(addr), isatap(a):
		return netip.AddrFrom4(tail(a)), true
	}
	return netip.Addr{}, false
}

// isatap says whether the interface identifier embeds an address (RFC 5214).
func isatap(a [16]byte) bool {
	return (a[8] == 0 || a[8] == 2) && a[9] == 0 && a[10] == 0x5e && a[11] == 0xfe
}

// embeddings are the forms of an IPv4 rule that a kernel's sets can hold as
// prefixes: NAT64 by the well-known prefix, and 6to4. The rest the proxy refuses.
func (r AddressRule) embeddings() []AddressRule {
	if !r.Prefix.Addr().Is4() {
		return nil
	}
	v4, bits := r.Prefix.Addr().As4(), r.Prefix.Bits()
	nat64, sixToFour := prefixNAT64.Addr().As16(), prefix6to4.Addr().As16()
	copy(nat64[12:], v4[:])
	copy(sixToFour[2:], v4[:])
	forms := []AddressRule{r, r}
	forms[0].Prefix = netip.PrefixFrom(netip.AddrFrom16(nat64), prefixNAT64.Bits()+bits)
	forms[1].Prefix = netip.PrefixFrom(netip.AddrFrom16(sixToFour), prefix6to4.Bits()+bits)
	return forms
}
