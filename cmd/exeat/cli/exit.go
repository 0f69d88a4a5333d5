package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

// The exit statuses. `run` and `exec` pass on their command's own besides.
const (
	statusDone        = 0
	statusNo          = 1 // invalid, denied, a failed check
	statusUsage       = 2 // usage, or input that cannot be read
	statusUnreachable = 3 // the sidecar does not answer
)

// exitError carries an exit status out of a command. A nil err says nothing
// more: the answer is on standard output already.
type exitError struct {
	code int
	err  error
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

// Unwrap gives errors.Is and errors.As the cause.
func (e *exitError) Unwrap() error { return e.err }

// errNo is a "no" that has been written out as the command's result.
func errNo() error { return &exitError{code: statusNo} }

// usageError is a command line that cannot be carried out as written; its
// complaint points to the command's help.
type usageError struct{ err error }

// Error implements error.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap gives errors.Is and errors.As the cause.
func (e *usageError) Unwrap() error { return e.err }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// exit turns what a command returned into complaints and an exit status. An
// error without a status of its own is no answer, so it must not look like
// a "no": it is statusUsage.
func (s *streams) exit(cmd *cobra.Command, err error) int {
	if err == nil {
		return statusDone
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			s.complainOf(exit.err)
		}
		return exit.code
	}
	s.complainOf(err)
	var refused *api.Error
	switch {
	case errors.As(err, &refused):
		return statusNo
	case errors.Is(err, client.ErrUnreachable):
		return statusUnreachable
	}
	var usage *usageError
	if errors.As(err, &usage) {
		s.complain("Run '%s --help' for usage.", cmd.CommandPath())
	}
	return statusUsage
}

// complainOf writes an error, a document's problems one a line.
func (s *streams) complainOf(err error) {
	var doc *documentError
	if errors.As(err, &doc) {
		for _, p := range doc.problems {
			s.complain("%s: error: %s", doc.name, p)
		}
		return
	}
	s.complain("exeat: %v", err)
}

// documentError is a document that was read and is not legal.
type documentError struct {
	name     string
	problems policy.Errors
}

// Error implements error.
func (e *documentError) Error() string { return e.name + ": " + e.problems.Error() }

// invalid is the "no" for a document called name that policy refused with err.
func invalid(name string, err error) error {
	var problems policy.Errors
	if !errors.As(err, &problems) {
		problems = policy.Errors{{Message: err.Error()}}
	}
	return &exitError{code: statusNo, err: &documentError{name: name, problems: problems}}
}

// flagError makes a usage error of what is wrong with a flag, and offers the
// flag that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return &usageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return usagef("%w%s", err, didYouMean("--", unknown.GetSpecifiedName(), names))
}
