//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/sidecar"
)

// The exit statuses.
const (
	statusDone   = 0
	statusFailed = 1
	statusUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if status, ours := calledOtherwise(ctx); ours {
		os.Exit(status)
	}
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is the whole command; args are without the program's name.
func run(ctx context.Context, args, environ []string, stdout, stderr *os.File) int {
	p := &program{environ: environ, out: stdout, err: stderr}
	root := newRootCommand(p)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return status(stderr, cmd, err)
}

// status turns what a command returned into a complaint and an exit status.
func status(stderr io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return statusDone
	}
	if errors.Is(err, sidecar.ErrFamilies) {
		return sidecar.FamiliesStatus
	}
	fmt.Fprintln(stderr, "exeatd:", err)
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		return statusUsage
	}
	return statusFailed
}

// usageError is a setting that cannot be carried out as written.
type usageError struct{ err error }

// Error implements error.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap gives errors.Is and errors.As the cause.
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }
