package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

// body reads one JSON object strictly and collects every problem: members that
// are unknown, given twice, missing or of the wrong type, and what policy.Parse
// finds in the documents.
type body struct {
	members  map[string]json.RawMessage
	order    []string
	known    map[string]bool
	problems []policy.Problem
	warnings []policy.Problem
	// documents are those in the body, by path, for a check of capabilities.
	documents []pathDocument
}

type pathDocument struct {
	path     string
	document policy.Document
}

// readBody reads the request's body. Nothing at all is the empty object.
func readBody(r *http.Request) (*body, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, &bodyError{err}
	}
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}")
	}
	return parseBody(data), nil
}

// bodyError is a body that did not arrive.
type bodyError struct{ cause error }

func (e *bodyError) Error() string { return fmt.Sprintf("read the body: %v", e.cause) }

// Unwrap gives the cause.
func (e *bodyError) Unwrap() []error {
	var tooLarge *http.MaxBytesError
	var busy *api.Error
	if errors.As(e.cause, &tooLarge) || errors.As(e.cause, &busy) {
		return []error{e.cause}
	}
	return []error{e.cause, api.Invalid([]policy.Problem{{Message: e.Error()}})}
}

func parseBody(data []byte) *body {
	b := &body{members: map[string]json.RawMessage{}, known: map[string]bool{}}
	if whole := bytes.TrimSpace(data); len(whole) > largeBody && whole[0] == '{' && json.Valid(whole) {
		b.share(whole)
		return b
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		b.complain("", "want a JSON object")
		return b
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			b.complain("", "is not JSON: %v", err)
			return b
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			b.complain("", "is not JSON: %v", err)
			return b
		}
		key, _ := name.(string) // a member's name is nothing else
		b.have(key, value)
	}
	if _, err := decoder.Token(); err != nil {
		b.complain("", "is not JSON: %v", err)
		return b
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		b.complain("", "has something after its end: want one JSON object")
	}
	return b
}

// have takes a member down.
func (b *body) have(key string, value json.RawMessage) {
	if _, twice := b.members[key]; twice {
		b.complain(key, "is given twice")
		return
	}
	b.members[key] = value
	b.order = append(b.order, key)
}

// share takes the members of an object down that is known to be valid, as parts of
// it: json.Decoder would hold it three times.
func (b *body) share(object []byte) {
	for rest := bytes.TrimSpace(object[1:]); rest[0] != '}'; {
		if rest[0] == ',' {
			rest = bytes.TrimSpace(rest[1:])
		}
		end := valueEnd(rest)
		var key string
		if err := json.Unmarshal(rest[:end], &key); err != nil {
			b.complain("", "is not JSON: %v", err)
			return
		}
		rest = bytes.TrimSpace(rest[end:])
		rest = bytes.TrimSpace(rest[1:]) // the colon
		end = valueEnd(rest)
		b.have(key, json.RawMessage(rest[:end]))
		rest = bytes.TrimSpace(rest[end:])
	}
}

// valueEnd is where the JSON value ends that b begins with.
func valueEnd(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 {
				return i // of what the value stands in
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}

func (b *body) complain(path, format string, args ...any) {
	b.problems = append(b.problems, policy.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// member takes a member out; null is a value of the wrong type.
func (b *body) member(name string) (json.RawMessage, bool) {
	b.known[name] = true
	value, ok := b.members[name]
	return value, ok
}

// finish gives every problem as one error.
func (b *body) finish() error {
	for _, name := range b.order {
		if !b.known[name] {
			b.complain(name, "is unknown: want %s", b.legal())
		}
	}
	if len(b.problems) > 0 {
		return api.Invalid(b.problems)
	}
	return nil
}

func (b *body) legal() string {
	if len(b.known) == 0 {
		return "an empty object"
	}
	return "one of " + strings.Join(sorted(b.known), ", ")
}

// document reads a policy.
func (b *body) document(path string, raw json.RawMessage) *policy.Document {
	doc, warnings, err := policy.Parse(raw)
	if err != nil {
		b.complainAll(path, err)
		return nil
	}
	for _, w := range warnings {
		b.warnings = append(b.warnings, policy.Problem{Path: below(path, w.Path), Message: w.Message})
	}
	b.documents = append(b.documents, pathDocument{path, doc})
	return &doc
}

func (b *body) complainAll(path string, err error) {
	var all policy.Errors
	if !errors.As(err, &all) {
		b.complain(path, "%v", err)
		return
	}
	for _, p := range all {
		b.complain(below(path, p.Path), "%s", p.Message)
	}
}

// below joins two JSON paths.
func below(path, rest string) string {
	if rest == "" || strings.HasPrefix(rest, "[") {
		return path + rest
	}
	return path + "." + rest
}

func (b *body) policy() *policy.Document {
	raw, ok := b.member("policy")
	if !ok {
		b.complain("policy", "is missing: want a policy document")
		return nil
	}
	b.members["policy"] = nil // its text may be large, and is not needed beside what it says
	return b.document("policy", raw)
}

func (b *body) ifGeneration() *uint64 {
	raw, ok := b.member("if_generation")
	if !ok {
		return nil
	}
	var generation uint64
	if isNull(raw) || json.Unmarshal(raw, &generation) != nil {
		b.complain("if_generation", "%s: want the number of a generation", excerpt(raw))
		return nil
	}
	return &generation
}

func (b *body) lease(required bool) api.Duration {
	raw, ok := b.member("for")
	if !ok {
		if required {
			b.complain("for", "is missing: want a duration, such as 30s")
		}
		return 0
	}
	var text string
	if json.Unmarshal(raw, &text) != nil || isNull(raw) {
		b.complain("for", "%s: want a duration in quotation marks, such as \"30s\"", excerpt(raw))
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		b.complain("for", "%q: want a positive number with a unit, such as 30s or 10m", text)
		return 0
	}
	return api.Duration(d)
}

func (b *body) then(lease bool) *api.Then {
	raw, ok := b.member("then")
	if !ok {
		return nil
	}
	if !lease {
		b.complain("then", "stands only beside for: say how long the lease lasts")
	}
	var name string
	if json.Unmarshal(raw, &name) == nil && !isNull(raw) && !api.IsPolicyWord(name) {
		b.phaseName("then", name)
		return &api.Then{Phase: name}
	}
	return &api.Then{Policy: b.document("then", raw)}
}

func (b *body) text(name string) (string, bool) {
	raw, ok := b.member(name)
	if !ok {
		return "", false
	}
	var text string
	if json.Unmarshal(raw, &text) != nil || isNull(raw) {
		b.complain(name, "%s: want a string", excerpt(raw))
		return "", false
	}
	return text, true
}

// phaseName holds names to what a log, a path and a table can show.
func (b *body) phaseName(path, name string) {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) || r == '/' || r == unicode.ReplacementChar }
	switch {
	case name == "" || len(name) > 128:
		b.complain(path, "a phase's name has 1 to 128 bytes")
	case strings.ContainsFunc(name, unprintable):
		b.complain(path, "%q: a phase's name is printable and has no /", name)
	case api.IsPolicyWord(name):
		b.complain(path, "%q is a policy and can't be the name of a phase", name)
	}
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

func excerpt(raw json.RawMessage) string {
	if len(raw) > 40 {
		return strings.ToValidUTF8(string(raw[:40]), "") + "..."
	}
	return string(raw)
}
