package api

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// Event is one line of the event stream, as package audit documents it.
type Event = audit.Event

// Count is one line of the summary.
type Count = audit.Count

// Duration is a time.Duration that JSON writes as Go does ("1m30s").
type Duration time.Duration

// String writes it as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes "1m30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit, such as 30s or 10m", text)
	}
	*d = Duration(parsed)
	return nil
}

// Status is the answer of GET /v1/status.
type Status struct {
	Version string `json:"version"`
	// Shape is how the engine stands: "sealed" or "joined".
	Shape   string    `json:"shape"`
	Name    string    `json:"name,omitempty"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	// Ready is what /v1/readyz answers by.
	Ready bool        `json:"ready"`
	Mode  policy.Mode `json:"mode"`
	// Phase is empty while the policy belongs to none.
	Phase      string `json:"phase"`
	Generation uint64 `json:"generation"`
	// Since is when the policy in force came into force.
	Since time.Time `json:"since"`
	Lease *Lease    `json:"lease,omitempty"`
	Flows int       `json:"flows"`
	// OwnTraffic says how the sidecar's own sockets are told from the agent's,
	// where the shape has to ("cgroup", "secret").
	OwnTraffic string   `json:"own_traffic,omitempty"`
	Health     []Health `json:"health"`
}

// Health is the state of one part.
type Health struct {
	Part    string `json:"part"`
	OK      bool   `json:"ok"`
	Message string `json:"message,omitempty"`
}

// Lease says when the policy in force ends by itself, and what follows it.
type Lease struct {
	Expires time.Time `json:"expires"`
	Then    Then      `json:"then"`
}

// Then is what takes over when a lease ends: a phase, or a policy. The zero
// value is the policy no-network. In JSON an object and the strings "public" and
// "no-network" are a policy; any other string is the name of a phase.
type Then struct {
	Phase  string
	Policy *policy.Document
}

// MarshalJSON writes the name of the phase or the policy.
func (t Then) MarshalJSON() ([]byte, error) {
	switch {
	case t.Policy != nil:
		return json.Marshal(t.Policy)
	case t.Phase != "":
		return json.Marshal(t.Phase)
	default:
		return json.Marshal(string(policy.ModeNoNetwork))
	}
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *Then) UnmarshalJSON(data []byte) error {
	var name string
	if json.Unmarshal(data, &name) == nil && !IsPolicyWord(name) {
		*t = Then{Phase: name}
		return nil
	}
	var doc policy.Document
	if err := doc.UnmarshalJSON(data); err != nil {
		return err
	}
	*t = Then{Policy: &doc}
	return nil
}

// IsPolicyWord says whether a bare string is a whole policy, and so can't be the
// name of a phase.
func IsPolicyWord(s string) bool {
	return s == string(policy.ModePublic) || s == string(policy.ModeNoNetwork)
}

// PolicyState is the answer of GET /v1/policy.
type PolicyState struct {
	Policy     policy.Document `json:"policy"`
	Generation uint64          `json:"generation"`
	Since      time.Time       `json:"since"`
	Phase      string          `json:"phase"`
	// Floor are the rules that no policy lifts.
	Floor []string `json:"floor,omitempty"`
	Lease *Lease   `json:"lease,omitempty"`
}

// SwapRequest is the body of PUT /v1/policy.
type SwapRequest struct {
	Policy *policy.Document `json:"policy"`
	// IfGeneration, where set, must be the generation in force.
	IfGeneration *uint64 `json:"if_generation,omitempty"`
	// For, where not zero, is a lease: when it ends, Then takes over.
	For  Duration `json:"for,omitzero"`
	Then *Then    `json:"then,omitempty"`
	// Phase is the name that events and status carry from now on.
	Phase string `json:"phase,omitempty"`
}

// EnterRequest is the body of POST /v1/phases/{name}.
type EnterRequest struct {
	IfGeneration *uint64  `json:"if_generation,omitempty"`
	For          Duration `json:"for,omitzero"`
	Then         *Then    `json:"then,omitempty"`
}

// SwapResult is the answer to a swap that took place.
type SwapResult struct {
	Generation uint64 `json:"generation"`
	// Revoked is how many open flows were cut.
	Revoked  int              `json:"revoked"`
	TookUS   int64            `json:"took_us"`
	Phase    string           `json:"phase,omitempty"`
	Lease    *Lease           `json:"lease,omitempty"`
	Warnings []policy.Problem `json:"warnings,omitempty"`
}

// CheckRequest is the body of POST /v1/policy/check.
type CheckRequest struct {
	Policy *policy.Document `json:"policy"`
}

// CheckResult is the answer of POST /v1/policy/check: the policy could be
// swapped to, and this is what would change.
type CheckResult struct {
	Policy     policy.Document  `json:"policy"`
	Generation uint64           `json:"generation"`
	Warnings   []policy.Problem `json:"warnings"`
	// Diff is by what the two decide, not by how they are written.
	Diff policy.Diff `json:"diff"`
}

// ExplainRequest is the body of POST /v1/explain: targets as
// policy.ParseAskTarget reads them.
type ExplainRequest struct {
	Targets []string `json:"targets"`
}

// Explanation is what would be decided for one target.
type Explanation struct {
	Target   string         `json:"target"`
	Verdict  policy.Verdict `json:"verdict"`
	Rule     string         `json:"rule,omitempty"`
	Reason   policy.Reason  `json:"reason"`
	Name     string         `json:"name,omitempty"`
	Addr     netip.Addr     `json:"addr,omitzero"`
	Port     uint16         `json:"port"`
	Protocol string         `json:"protocol"`
	// Attributed are the names that the address was handed out for.
	Attributed []string `json:"attributed,omitempty"`
	Generation uint64   `json:"generation"`
	// Note says what the decision alone does not, in a sentence.
	Note string `json:"note,omitempty"`
}

// ExplainResult is the answer of POST /v1/explain, in the order of the question.
type ExplainResult struct {
	Explanations []Explanation `json:"explanations"`
}

// Phase is one named policy.
type Phase struct {
	Name   string          `json:"name"`
	Policy policy.Document `json:"policy"`
	Source policy.Source   `json:"source,omitempty"`
}

// Phases is the answer of GET /v1/phases and, without Current, the body of PUT.
type Phases struct {
	Current string  `json:"current,omitempty"`
	Phases  []Phase `json:"phases"`
}

// LeaseRequest is the body of POST /v1/lease.
type LeaseRequest struct {
	For Duration `json:"for"`
}

// Flow is one open flow.
type Flow struct {
	ID     string    `json:"id"`
	Opened time.Time `json:"opened"`
	// Client is the sandbox's side of it.
	Client     netip.AddrPort `json:"client,omitzero"`
	Name       string         `json:"name,omitempty"`
	Addr       netip.Addr     `json:"addr,omitzero"`
	Port       uint16         `json:"port"`
	Protocol   string         `json:"protocol"`
	Channel    audit.Channel  `json:"channel,omitempty"`
	Rule       string         `json:"rule,omitempty"`
	Generation uint64         `json:"generation"`
	BytesOut   uint64         `json:"bytes_out"`
	BytesIn    uint64         `json:"bytes_in"`
}

// FlowList is the answer of GET /v1/flows.
type FlowList struct {
	Flows []Flow `json:"flows"`
}

// Summary is the answer of GET /v1/summary.
type Summary struct {
	Since  time.Time `json:"since"`
	Counts []Count   `json:"counts"`
}

// ProbeRequest is the body of POST /v1/probe.
type ProbeRequest struct {
	// Cases are numbers of the catalogue ("B01"); empty is all that can run.
	Cases []string `json:"cases,omitempty"`
	// Safe leaves out what could disturb the sandbox.
	Safe bool `json:"safe,omitempty"`
}

// ProbeReport is the answer of POST /v1/probe.
type ProbeReport struct {
	Cases []ProbeCase `json:"cases"`
	// Held, Leaks and NotProven count the cases by verdict.
	Held      int `json:"held"`
	Leaks     int `json:"leaks"`
	NotProven int `json:"not_proven"`
}

// ProbeVerdict is the outcome of one case.
type ProbeVerdict string

// The outcomes. A case that could not run is never taken for one that held.
const (
	ProbeHeld      ProbeVerdict = "held"
	ProbeLeak      ProbeVerdict = "leak"
	ProbeNotProven ProbeVerdict = "not-proven"
)

// ProbeCase is one attack and what became of it.
type ProbeCase struct {
	ID       string       `json:"id"`
	Attack   string       `json:"attack"`
	Expected string       `json:"expected"`
	Seen     string       `json:"seen"`
	Verdict  ProbeVerdict `json:"verdict"`
	// Why says why a case is not proven.
	Why string `json:"why,omitempty"`
}
