package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// parseRange reads ADDRESS/BITS, in brackets where a port follows an IPv6 one.
func parseRange(host, suffix string) (netip.Prefix, error) {
	inner, bracketed := host, false
	if strings.HasPrefix(host, "[") {
		inner, bracketed = strings.TrimSuffix(host[1:], "]"), true
	}
	text, bitsText, _ := strings.Cut(inner, "/")
	if strings.IndexByte(text, '%') >= 0 {
		return netip.Prefix{}, fmt.Errorf("%s has a zone, which means something on one machine only; leave it out", quote(host))
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, rangeAddressError(host, text, bitsText, suffix)
	}
	if bracketed && addr.Is4() {
		return netip.Prefix{}, fmt.Errorf("brackets are for IPv6 addresses; write %q", inner+suffix)
	}
	if bits, port, found := strings.Cut(bitsText, ":"); found && addr.Is6() && !bracketed {
		return netip.Prefix{}, fmt.Errorf("%s has a port and no brackets; write %q", quote(host), "["+text+"/"+bits+"]:"+port)
	}
	bits, err := parseBits(addr, bitsText)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%s %w", quote(host), err)
	}
	if addr.Is4In6() {
		if bits < 96 {
			return netip.Prefix{}, fmt.Errorf("%s is an IPv4-mapped range shorter than /96, which covers more than IPv4; write the IPv4 range, or an IPv6 range that does not begin with ::ffff", quote(host))
		}
		addr, bits = addr.Unmap(), bits-96
	}
	prefix := netip.PrefixFrom(addr, bits)
	if masked := prefix.Masked(); masked != prefix {
		meant := Target{Prefix: masked}
		if n, ok := parsePort(strings.TrimPrefix(suffix, ":")); ok {
			meant.Port = n
		}
		one := Target{Prefix: netip.PrefixFrom(addr, addr.BitLen()), Port: meant.Port}
		return netip.Prefix{}, fmt.Errorf("%s has bits set beyond its prefix length; write %q for the range, or %q for the one address", quote(host), meant, one)
	}
	return prefix, nil
}

func parseBits(addr netip.Addr, text string) (int, error) {
	legal := fmt.Errorf("has the prefix length %s; it is an integer from 0 to %d, in decimal digits without sign or leading zero", quote(text), addr.BitLen())
	if text == "" || len(text) > 1 && text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		mask, err := netip.ParseAddr(text)
		if err == nil && mask.Is4() && addr.Is4() {
			if bits, ok := maskBits(mask.As4()); ok {
				return 0, fmt.Errorf("has a netmask; write %q", addr.String()+"/"+strconv.Itoa(bits))
			}
		}
		return 0, legal
	}
	bits, err := strconv.Atoi(text)
	if err != nil || bits > addr.BitLen() {
		return 0, legal
	}
	return bits, nil
}

// maskBits is the length of a contiguous netmask.
func maskBits(mask [4]byte) (int, bool) {
	for bits := range 33 {
		all := netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), bits).Masked().Addr()
		if all.As4() == mask {
			return bits, true
		}
	}
	return 0, false
}

func rangeAddressError(host, text, bitsText, suffix string) error {
	if endsInNumber(text) && strings.IndexByte(text, ':') < 0 {
		if padded, ok := padOctets(text); ok {
			return fmt.Errorf("%s is not a range: write all four octets, %q", quote(host), padded+"/"+bitsText+suffix)
		}
		return errors.New(disguiseMessage(text, "/"+bitsText+suffix))
	}
	return fmt.Errorf("%s is not a range: %s is not an address", quote(host), quote(text))
}

// padOctets fills "10" or "10.1" up to four octets, as people shorten ranges.
func padOctets(text string) (string, bool) {
	missing := 3 - strings.Count(text, ".")
	if missing < 1 {
		return "", false
	}
	addr, err := netip.ParseAddr(text + strings.Repeat(".0", missing))
	return addr.String(), err == nil
}
