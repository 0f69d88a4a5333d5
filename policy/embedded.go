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

// embeddedForms is how many IPv4 addresses an IPv6 address may be read as at most.
const embeddedForms = 4

// embedded gives the n IPv4 addresses that an IPv6 one may lead to: who is denied
// one is denied it in this form too (bypass B20).
func embedded(addr netip.Addr) (forms [embeddedForms]netip.Addr, n int) {
	if !addr.Is6() {
		return forms, 0
	}
	a := addr.As16()
	switch {
	case prefixNAT64Local.Contains(addr):
		found, n := localForms(a)
		for i, form := range found[:n] {
			forms[i] = netip.AddrFrom4(form)
		}
		return forms, n
	case prefix6to4.Contains(addr):
		forms[0] = netip.AddrFrom4([4]byte(a[2:6]))
	case prefixTeredo.Contains(addr):
		client := tail(a) // written inverted
		for i := range client {
			client[i] ^= 0xff
		}
		forms[0] = netip.AddrFrom4(client)
	case prefixNAT64.Contains(addr), prefixCompatible.Contains(addr), isatap(a):
		forms[0] = netip.AddrFrom4(tail(a))
	default:
		return forms, 0
	}
	return forms, 1
}

// localForms are what an address of the local NAT64 prefix may be: that may be used
// at each length of RFC 6052 section 2.2, and the address does not say which.
func localForms(a [16]byte) (forms [embeddedForms][4]byte, n int) {
	add := func(form [4]byte) { forms[n], n = form, n+1 }
	if a[8] == 0 && zero(a[11:]) {
		add([4]byte{a[6], a[7], a[9], a[10]})
	}
	if a[8] == 0 && zero(a[12:]) {
		add([4]byte{a[7], a[9], a[10], a[11]})
	}
	if a[8] == 0 && zero(a[13:]) {
		add([4]byte(a[9:13]))
	}
	add(tail(a))
	return forms, n
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
