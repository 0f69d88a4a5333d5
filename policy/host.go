package policy

import (
	"errors"
	"net/netip"
)

// Host is a normalised name or an address: exactly one is set.
type Host struct {
	Name string
	Addr netip.Addr
}

// ParseHost reads what a person wrote (UTS #46).
func ParseHost(s string) (Host, error) { return Host{}, errors.New("policy: not built yet") }

// ParseWireHost reads what a client sent: ASCII only; an error means malformed.
func ParseWireHost(s string) (Host, error) { return Host{}, errors.New("policy: not built yet") }
