package audit

// The member names of a JSON line, in the order in which they are written. They
// are stable: a program may rely on them, and a member is added, never renamed.
// doc.go documents each.
const (
	FieldID         = "id"
	FieldTime       = "time"
	FieldKind       = "kind"
	FieldDecision   = "decision"
	FieldVerdict    = "verdict"
	FieldReason     = "reason"
	FieldRule       = "rule"
	FieldGeneration = "generation"
	FieldPhase      = "phase"
	FieldChannel    = "channel"
	FieldName       = "name"
	FieldAddr       = "addr"
	FieldPort       = "port"
	FieldProtocol   = "protocol"
	FieldQType      = "qtype"
	FieldFlow       = "flow"
	FieldBytesOut   = "bytes_out"
	FieldBytesIn    = "bytes_in"
	FieldDurationUS = "duration_us"
	FieldError      = "error"
	FieldMessage    = "message"
	FieldRevoked    = "revoked"
	FieldFolded     = "folded"
	FieldSince      = "since"
)
