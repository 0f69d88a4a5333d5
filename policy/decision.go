package policy

import (
	"fmt"
	"net/netip"
)

// Verdict says whether a request may pass. The zero value denies.
type Verdict uint8

// The two verdicts.
const (
	Deny Verdict = iota
	Allow
)

// String gives the word that logs and answers carry.
func (v Verdict) String() string {
	if v == Allow {
		return "allow"
	}
	return "deny"
}

// MarshalText writes the word of String.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads "allow" or "deny"; anything else is an error and denies.
func (v *Verdict) UnmarshalText(text []byte) error {
	switch string(text) {
	case "allow":
		*v = Allow
	case "deny":
		*v = Deny
	default:
		*v = Deny
		return fmt.Errorf("verdict %q: want allow or deny", text)
	}
	return nil
}

// Reason is the fixed word that says why a decision fell (policy.md section 5).
type Reason string

// The reasons, in the order of the specification.
const (
	ReasonMode            Reason = "mode"
	ReasonRule            Reason = "rule"
	ReasonUnlisted        Reason = "unlisted"
	ReasonDenied          Reason = "denied"
	ReasonSpecialAddress  Reason = "special-address"
	ReasonNoServerName    Reason = "no-server-name"
	ReasonNameMismatch    Reason = "name-mismatch"
	ReasonECH             Reason = "encrypted-client-hello"
	ReasonMalformed       Reason = "malformed"
	ReasonProtocol        Reason = "protocol"
	ReasonQueryType       Reason = "query-type"
	ReasonNotAttributable Reason = "not-attributable"
	ReasonRevoked         Reason = "revoked"
	ReasonLimit           Reason = "limit"
	ReasonUnprotected     Reason = "unprotected"
)

// Protocol is the transport of a request. The zero value is TCP.
type Protocol uint8

// The protocols that a target can open.
const (
	TCP Protocol = iota
	UDP
	ICMP
)

// Kind says what is being judged. The zero value is a question about a target
// ("what would be decided?"), which no bytes accompany.
type Kind uint8

// The kinds of request.
const (
	// KindAsk is a target that is only asked about: explain, a CONNECT authority
	// before its inner bytes, one request of an HTTP connection.
	KindAsk Kind = iota
	// KindPacket is a bare packet: nothing of it will be read.
	KindPacket
	// KindConnection is a connection whose first bytes were read (Finding says
	// with what result; Name is empty when they name nothing).
	KindConnection
	// KindQuestion is a DNS question: Name and QType; Addr, Port and Protocol
	// are not looked at.
	KindQuestion
)

// Finding is what reading a connection's first bytes brought to light. The zero
// value is nothing remarkable. They are tried in the order of policy.md section
// 3, steps 4 to 6.
type Finding uint8

// The findings.
const (
	FindingNone Finding = iota
	// FindingMalformed: the bytes do not parse as what they begin as.
	FindingMalformed
	// FindingTimeout: nothing (or not enough) was sent in time.
	FindingTimeout
	// FindingMismatch: CONNECT authority, URI, Host or SNI disagree.
	FindingMismatch
	// FindingNoServerName: TLS without a server name.
	FindingNoServerName
	// FindingECH: a ClientHello with an encrypted_client_hello extension; Name is
	// the outer server name.
	FindingECH
)

// Request is what Decide judges. It is read, never kept.
type Request struct {
	Kind Kind
	// Name is the name asked for, as ParseWireHost gives it; empty when the
	// request names nothing.
	Name string
	// Addr is the destination address, unmapped; the zero Addr when only a name
	// is asked about.
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
	// QType is the DNS query type (RFC 1035 section 3.2.2) of a KindQuestion.
	QType   uint16
	Finding Finding
	// Attributed are the names for which the resolver handed out Addr.
	Attributed []string
}

// Decision is the outcome of judging one Request. The zero value denies.
type Decision struct {
	Verdict Verdict
	// Rule is the most specific matching target in canonical form, with "floor:"
	// before it where it belongs to the floor; empty where no target decided.
	Rule   string
	Reason Reason
	// Generation is that of the policy that decided.
	Generation uint64
}
