package policy

import "strings"

// Problem is one finding in a document: a JSON path ("" is the root) and a
// message that says what is wrong, what is legal and, where it can be guessed,
// what was meant.
type Problem struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// String gives "path: message", or the message alone at the root.
func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// Errors are all the problems that make a document illegal.
type Errors []Problem

// Error lists the problems, one a line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Mode is the network mode of a document. The zero value is no mode, and is
// enforced as no-network.
type Mode string

// The modes of policy.md section 1.
const (
	ModePublic    Mode = "public"
	ModeNoNetwork Mode = "no-network"
	ModeAllowlist Mode = "allowlist"
	ModeDenylist  Mode = "denylist"
)

// Document is a parsed policy. The zero value lets nothing out.
type Document struct {
	Mode    Mode
	Allowed []Target
	Denied  []Target
}
