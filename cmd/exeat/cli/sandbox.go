package cli

import (
	"cmp"
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

// sandboxFlag says which sandbox a command is for: an argument that names it, here
// or among a container engine's, or the path of its control socket.
type sandboxFlag struct {
	engineFlag
	socket string
}

// path is the control socket that is meant; "" where a name says it.
func (f *sandboxFlag) path() string { return cmp.Or(f.socket, ownSocket()) }

// register adds --socket to a command whose first argument is otherwise the
// sandbox's name.
func (f *sandboxFlag) register(cmd *cobra.Command) {
	f.engineFlag.register(cmd)
	f.registerSocket(cmd, "the control socket at `PATH`, instead of SANDBOX")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 || f.path() != "" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return completeNames()
	}
}

func (f *sandboxFlag) registerSocket(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&f.socket, "socket", ownSocket(), usage)
}

// optional wants SANDBOX or nothing; nothing where a socket says which it is.
func (f *sandboxFlag) optional(cmd *cobra.Command, args []string) error {
	if f.path() != "" {
		return arguments(0, 0)(cmd, args)
	}
	return arguments(0, 1)(cmd, args)
}

// arguments wants low to high arguments after SANDBOX, or with --socket in all.
func (f *sandboxFlag) arguments(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if f.path() == "" {
			low++
			if high >= 0 {
				high++
			}
		}
		return arguments(low, high)(cmd, args)
	}
}

// take gives the sandbox's client, and the arguments that are left. What would undo
// a container's guard is complained of on stderr.
func (f *sandboxFlag) take(ctx context.Context, stderr io.Writer, args []string) (guarded, []string, error) {
	if path := f.path(); path != "" {
		return guarded{Client: client.New(path)}, args, nil
	}
	g, err := f.open(ctx, stderr, args[0])
	return g, args[1:], err
}

// sandboxCommand makes a command whose first argument is a sandbox: run gets its
// client and what other arguments there are.
func sandboxCommand(cmd *cobra.Command, low, high int, run func(ctx context.Context, c *client.Client, args []string) error) *cobra.Command {
	return guardedCommand(cmd, low, high, func(ctx context.Context, g guarded, args []string) error {
		return run(ctx, g.Client, args)
	})
}

// guardedCommand is sandboxCommand for one that is also told of the container.
func guardedCommand(cmd *cobra.Command, low, high int, run func(ctx context.Context, g guarded, args []string) error) *cobra.Command {
	var flag sandboxFlag
	flag.register(cmd)
	cmd.Args = flag.arguments(low, high)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		g, rest, err := flag.take(cmd.Context(), cmd.ErrOrStderr(), args)
		if err != nil {
			return err
		}
		defer g.Close()
		return run(cmd.Context(), g, rest)
	}
	return cmd
}

// eitherPolicy reads the policy of -f FILE, or the one in force in a sandbox.
func (s *streams) eitherPolicy(ctx context.Context, flag sandboxFlag, file string, args []string) (policy.Document, error) {
	switch named := flag.socket != ownSocket() || len(args) > 0; {
	case named && file != "":
		return policy.Document{}, usagef("want a sandbox or -f FILE, not both")
	case file != "":
		return s.readPolicy(file)
	case !named && ownSocket() == "":
		return policy.Document{}, usagef("say which policy: a SANDBOX or -f FILE")
	}
	c, _, err := flag.take(ctx, s.err, args)
	if err != nil {
		return policy.Document{}, err
	}
	defer c.Close()
	state, err := c.Policy(ctx)
	return state.Policy, err
}
