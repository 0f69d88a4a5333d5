//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/sidecar"
)

// program is what the commands are run with.
type program struct {
	environ  []string
	out, err *os.File
}

func newRootCommand(p *program) *cobra.Command {
	s := &settings{}
	root := &cobra.Command{
		Use:   "exeatd [flags]",
		Short: "Decide what leaves the network namespace that this container shares",
		Long: `Runs in a container that shares the network namespace of a sandbox, and decides
what leaves it: rules in the kernel judge every packet, a resolver every name, a
proxy every connection that only a name can decide.

It needs NET_ADMIN; at start, and given back before anything is let through,
NET_RAW where the sandbox may have it (--sandbox-net-raw), and SETUID where
control groups cannot tell its traffic apart. When it ends the rules stay, and
the sandbox stays shut.

Without a policy nothing gets out. The policy can be swapped through the control
socket (see "exeat policy set" and "exeat phase").

Each flag can be set by an environment variable too (--on-breach by
EXEAT_ON_BREACH, lists separated by white space), or in the file of --config
(on-breach = "deny", lists as arrays, in TOML). A flag wins over the environment,
and that over the file.`,
		Example: `  exeatd --allow pypi.org --allow files.pythonhosted.org --resolver 192.0.2.53
  exeatd --phases /etc/exeat/task.toml --state /var/lib/exeat
  EXEAT_MODE=public EXEAT_FLOOR="metadata.internal 198.51.100.0/24" exeatd`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unexpected argument %q: exeatd takes flags alone, and the commands healthcheck and version", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := s.read(p, cmd.Flags())
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find our own executable (is /proc mounted?): %w", err)
			}
			return sidecar.Keep(cmd.Context(), config, []string{self, workerCommand}, p.out, p.err)
		},
		SilenceErrors: true, // status writes them
		SilenceUsage:  true,
	}
	root.AddCommand(newHealthcheckCommand(p), newVersionCommand(p), newWorkerCommand(p), newOpenCommand())
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.CompletionOptions.DisableDefaultCmd = true
	s.register(root.Flags())
	return root
}

// workerCommand is what the keeper starts.
const workerCommand = "worker"

func newWorkerCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use: workerCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return sidecar.Work(cmd.Context(), p.out) },
	}
}

func newHealthcheckCommand(p *program) *cobra.Command {
	s := &settings{}
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Say whether the sidecar enforces its policy, for a container's HEALTHCHECK",
		Long: `Asks the sidecar through its control socket. Exit status 0 when it is ready: rules
loaded, listeners bound, an allowed and a denied probe behaving. 1 otherwise, with
the reason on standard error.`,
		Example: "  HEALTHCHECK --interval=5s CMD [\"exeatd\", \"healthcheck\"]",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.layer(p, cmd.Flags()); err != nil {
				return err
			}
			c := client.New(s.control)
			defer c.Close()
			err := c.Ready(cmd.Context())
			var notReady *api.Error
			if errors.As(err, &notReady) {
				for _, problem := range notReady.Problems {
					fmt.Fprintf(p.err, "%s\n", problem)
				}
			}
			return err
		},
	}
	s.registerControl(cmd.Flags())
	return cmd
}

func newVersionCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this binary", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(p.out, "exeatd %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// version is what the go command stamped into this binary.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
