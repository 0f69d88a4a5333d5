package policy

import (
	"errors"
	"net/netip"
)

// TargetProtocol is the protocol of a target as it was written; empty when it
// was left out.
type TargetProtocol string

// The protocols that may be written.
const (
	ProtocolUnset TargetProtocol = ""
	ProtocolTCP   TargetProtocol = "tcp"
	ProtocolUDP   TargetProtocol = "udp"
	ProtocolAny   TargetProtocol = "any"
)

// Target is one entry of a list. Targets are comparable.
type Target struct {
	// Name is the normalised name, without "*." where Wildcard; empty for
	// address targets.
	Name     string
	Wildcard bool
	// Prefix is set for address targets; a single address is a /32 or /128.
	Prefix netip.Prefix
	// Port 0 means every port.
	Port  uint16
	Proto TargetProtocol
	// Private is as written; a name of one label is private without it.
	Private bool
}

// ParseTarget reads the string form of a target.
func ParseTarget(s string) (Target, error) { return Target{}, errors.New("policy: not built yet") }

// ParseAskTarget reads what explain takes: a name or address, a port (443 when
// left out) and "/tcp" or "/udp".
func ParseAskTarget(s string) (Request, error) { return Request{}, errors.New("policy: not built yet") }

// String gives the canonical rule text.
func (t Target) String() string { return t.Name }
