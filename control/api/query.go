package api

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// EventQuery says which events to give. The zero value is all that are kept.
type EventQuery struct {
	// Follow goes on with what is yet to come.
	Follow bool
	// After is the ID of the last event that is already known.
	After uint64
	// Since leaves out what happened before it.
	Since time.Time
	// Verdict leaves out other verdicts, and what has none. nil is both.
	Verdict *policy.Verdict
	// Reasons and Kinds leave out what is not among them. Empty is all.
	Reasons []policy.Reason
	Kinds   []audit.Kind
	// Name is a name, or "*." and a name for all below it. Empty is all.
	Name string
}

// Values writes the query as ParseEventQuery reads it.
func (q EventQuery) Values() url.Values {
	v := url.Values{}
	if q.Follow {
		v.Set("follow", "1")
	}
	switch {
	case q.After != 0:
		v.Set("since", strconv.FormatUint(q.After, 10))
		if !q.Since.IsZero() {
			v.Add("since", q.Since.Format(time.RFC3339Nano))
		}
	case !q.Since.IsZero():
		v.Set("since", q.Since.Format(time.RFC3339Nano))
	}
	if q.Verdict != nil {
		v.Set("verdict", q.Verdict.String())
	}
	for _, r := range q.Reasons {
		v.Add("reason", string(r))
	}
	for _, k := range q.Kinds {
		v.Add("kind", string(k))
	}
	if q.Name != "" {
		v.Set("name", q.Name)
	}
	return v
}

// ParseEventQuery reads the query of GET /v1/events strictly, with every problem
// by the name of its parameter. since is an ID, a time (RFC 3339) or how long
// ago ("10m", by now); reason and kind may be repeated.
func ParseEventQuery(v url.Values, now time.Time) (EventQuery, []policy.Problem) {
	var q EventQuery
	var problems []policy.Problem
	complain := func(parameter, format string, args ...any) {
		problems = append(problems, policy.Problem{Path: parameter, Message: fmt.Sprintf(format, args...)})
	}
	for _, parameter := range sortedKeys(v) {
		values := v[parameter]
		if len(values) > 1 && !slices.Contains([]string{"reason", "kind", "since"}, parameter) {
			complain(parameter, "is given %d times: want once", len(values))
			continue
		}
		for _, value := range values {
			if message := q.set(parameter, value, now); message != "" {
				complain(parameter, "%s", message)
			}
		}
	}
	return q, problems
}

// set takes one parameter, and says what is wrong with it.
func (q *EventQuery) set(parameter, value string, now time.Time) (message string) {
	switch parameter {
	case "follow":
		follow, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Sprintf("%q: want 1 or 0", value)
		}
		q.Follow = follow
	case "since":
		return q.setSince(value, now)
	case "verdict":
		var verdict policy.Verdict
		if err := verdict.UnmarshalText([]byte(value)); err != nil {
			return fmt.Sprintf("%q: want allow or deny", value)
		}
		q.Verdict = &verdict
	case "reason":
		if !slices.Contains(reasons(), policy.Reason(value)) {
			return fmt.Sprintf("%q: want one of %s", value, join(reasons()))
		}
		q.Reasons = append(q.Reasons, policy.Reason(value))
	case "kind":
		if !slices.Contains(audit.Kinds(), audit.Kind(value)) {
			return fmt.Sprintf("%q: want one of %s", value, join(audit.Kinds()))
		}
		q.Kinds = append(q.Kinds, audit.Kind(value))
	case "name":
		name := strings.ToLower(strings.TrimSuffix(value, "."))
		if name == "" || len(name) > 255 || strings.HasSuffix(name, ".") {
			return fmt.Sprintf("%q: want a name, or *. and a name for all below it", value)
		}
		q.Name = name
	default:
		return "is no parameter of this call: want follow, since, verdict, reason, kind or name"
	}
	return ""
}

func (q *EventQuery) setSince(value string, now time.Time) (message string) {
	if id, err := strconv.ParseUint(value, 10, 64); err == nil {
		q.After = id
		return ""
	}
	if t, err := time.Parse(time.RFC3339Nano, value); err == nil {
		q.Since = t
		return ""
	}
	if ago, err := time.ParseDuration(value); err == nil && ago >= 0 {
		q.Since = now.Add(-ago)
		return ""
	}
	return fmt.Sprintf("%q: want the ID of an event, a time such as 2006-01-02T15:04:05Z, or how long ago, such as 10m", value)
}

// Matches says whether the query lets e through, After aside. What a reader
// lost is always told.
func (q *EventQuery) Matches(e *Event) bool {
	if e.Kind == audit.KindLost {
		return true
	}
	if e.Time.Before(q.Since) || len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind) {
		return false
	}
	if len(q.Reasons) > 0 && !slices.Contains(q.Reasons, e.Reason) {
		return false
	}
	if q.Verdict != nil && (e.Verdict != *q.Verdict || e.Kind != audit.KindDecision && e.Kind != audit.KindFlow) {
		return false
	}
	if base, below := strings.CutPrefix(q.Name, "*."); below {
		return strings.HasSuffix(e.Name, "."+base)
	}
	return q.Name == "" || e.Name == q.Name
}

func reasons() []policy.Reason {
	return []policy.Reason{
		policy.ReasonMode, policy.ReasonRule, policy.ReasonUnlisted, policy.ReasonDenied, policy.ReasonSpecialAddress,
		policy.ReasonNoServerName, policy.ReasonNameMismatch, policy.ReasonECH, policy.ReasonMalformed,
		policy.ReasonProtocol, policy.ReasonQueryType, policy.ReasonNotAttributable, policy.ReasonRevoked,
		policy.ReasonLimit, policy.ReasonUnprotected,
	}
}

func join[S ~string](words []S) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}

func sortedKeys(v url.Values) []string {
	keys := make([]string, 0, len(v))
	for k := range v {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
