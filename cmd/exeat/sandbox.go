package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

// sandboxFlag says which sandbox a command is for: an argument that names it, or
// the path of its control socket.
type sandboxFlag struct{ socket string }

// register adds --socket to a command whose first argument is otherwise the
// sandbox's name.
func (f *sandboxFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.socket, "socket", "", "the control socket at `PATH`, instead of SANDBOX")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 || f.socket != "" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return completeNames()
	}
}

// completeNames offers the names of the local sandboxes.
func completeNames() ([]string, cobra.ShellCompDirective) {
	names, err := localNames()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// arguments wants low to high arguments after SANDBOX, or with --socket in all.
func (f *sandboxFlag) arguments(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if f.socket == "" {
			low++
			if high >= 0 {
				high++
			}
		}
		return arguments(low, high)(cmd, args)
	}
}

// take gives the sandbox's client, and the arguments that are left.
func (f *sandboxFlag) take(args []string) (*client.Client, []string, error) {
	if f.socket != "" {
		return client.New(f.socket), args, nil
	}
	c, err := named(args[0])
	return c, args[1:], err
}

// named gives a client of the sandbox that is called name.
func named(name string) (*client.Client, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return client.New(socketPath(name)), nil
}

// sandboxCommand makes a command whose first argument is a sandbox: run gets its
// client and what other arguments there are.
func sandboxCommand(cmd *cobra.Command, low, high int, run func(ctx context.Context, c *client.Client, args []string) error) *cobra.Command {
	var flag sandboxFlag
	flag.register(cmd)
	cmd.Args = flag.arguments(low, high)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, rest, err := flag.take(args)
		if err != nil {
			return err
		}
		defer c.Close()
		return run(cmd.Context(), c, rest)
	}
	return cmd
}

// eitherPolicy reads the policy of -f FILE, or the one in force in a sandbox.
func (s *streams) eitherPolicy(ctx context.Context, flag sandboxFlag, file string, args []string) (policy.Document, error) {
	switch sandbox := flag.socket != "" || len(args) > 0; {
	case sandbox && file != "":
		return policy.Document{}, usagef("want a sandbox or -f FILE, not both")
	case file != "":
		return s.readPolicy(file)
	case !sandbox:
		return policy.Document{}, usagef("say which policy: a SANDBOX or -f FILE")
	}
	c, _, err := flag.take(args)
	if err != nil {
		return policy.Document{}, err
	}
	defer c.Close()
	state, err := c.Policy(ctx)
	return state.Policy, err
}
