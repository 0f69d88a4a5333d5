package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/exeat/exeat/policy"
)

// Code is the fixed word for what went wrong, for programs to branch on.
type Code string

// The codes, each with the one HTTP status it is sent with.
const (
	CodeInvalid         Code = "invalid"            // 400: the body, or a document in it; Problems has them all
	CodeForbidden       Code = "forbidden"          // 403: the peer may not use this socket
	CodeNotFound        Code = "not-found"          // 404: no such call, phase or flow
	CodeMethod          Code = "method-not-allowed" // 405
	CodeNoLease         Code = "no-lease"           // 409: nothing to renew
	CodeStaleGeneration Code = "stale-generation"   // 412: CurrentGeneration is in force
	CodeTooLarge        Code = "too-large"          // 413
	CodeCapability      Code = "capability-missing" // 422: Problems names each
	CodeInternal        Code = "internal"           // 500
	CodeNotImplemented  Code = "not-implemented"    // 501: this engine has no such part
	CodeKernelRefused   Code = "kernel-refused"     // 503: the old policy stands
	CodeNotReady        Code = "not-ready"          // 503
	CodeBusy            Code = "busy"               // 503: nothing was changed, try again
)

// Error is the body of every answer that is not a success, and what the client
// returns for one. It is the engine's error too: one that wraps an *Error is
// answered with it, any other is a 500.
type Error struct {
	Status  int    `json:"status"`
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Problems are all that is wrong with a document.
	Problems []policy.Problem `json:"problems,omitempty"`
	// CurrentGeneration is set where a swap was refused.
	CurrentGeneration uint64 `json:"current_generation,omitempty"`
}

// Error gives the message and, below it, the problems.
func (e *Error) Error() string {
	if len(e.Problems) == 0 {
		return e.Message
	}
	var b strings.Builder
	b.WriteString(e.Message)
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		b.WriteString(p.String())
	}
	return b.String()
}

// Invalid is a 400 with every problem found.
func Invalid(problems []policy.Problem) *Error {
	message := "the request has a problem"
	if len(problems) > 1 {
		message = fmt.Sprintf("the request has %d problems", len(problems))
	}
	return &Error{Status: http.StatusBadRequest, Code: CodeInvalid, Message: message, Problems: problems}
}

// Stale is the 412 for an if_generation that is no longer in force.
func Stale(wanted, current uint64) *Error {
	return &Error{
		Status: http.StatusPreconditionFailed, Code: CodeStaleGeneration, CurrentGeneration: current,
		Message: fmt.Sprintf("generation %d is not in force, %d is: read the policy again and decide anew", wanted, current),
	}
}

// MissingCapability is the 422 for a policy that this enforcement point can't hold.
func MissingCapability(problems []policy.Problem) *Error {
	return &Error{
		Status: http.StatusUnprocessableEntity, Code: CodeCapability, Problems: problems,
		Message: "this enforcement point can't hold the policy whole, so it was not applied",
	}
}

// KernelRefused is the 503 for a swap that the kernel did not take.
func KernelRefused(cause error, current uint64) *Error {
	return &Error{
		Status: http.StatusServiceUnavailable, Code: CodeKernelRefused, CurrentGeneration: current,
		Message: fmt.Sprintf("the kernel refused the new rules, the old policy stands: %v", cause),
	}
}

// NoSuchPhase is the 404 for a phase that is not among the known.
func NoSuchPhase(name string, known []string) *Error {
	message := fmt.Sprintf("no phase %q: no phases are set (PUT /v1/phases)", name)
	if len(known) > 0 {
		message = fmt.Sprintf("no phase %q: want one of %s", name, strings.Join(known, ", "))
	}
	return &Error{Status: http.StatusNotFound, Code: CodeNotFound, Message: message}
}

// NoLease is the 409 for renewing where the policy in force has no lease.
func NoLease() *Error {
	return &Error{
		Status: http.StatusConflict, Code: CodeNoLease,
		Message: "the policy in force has no lease: it stands until it is swapped",
	}
}
