package cli

import (
	"context"
	"io"
	"os"
)

// Main is the program exeat. It must be called first thing: a sandbox's process 1
// is the same binary.
func Main() {
	atStart()
	os.Exit(Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Run is the whole command: it reads args (without the program's name), writes
// results to stdout and complaints to stderr, and returns the exit status.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s := &streams{in: stdin, out: stdout, err: stderr}
	root := newRootCommand(s)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return s.exit(cmd, err)
}
