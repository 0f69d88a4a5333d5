//go:build image

package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sandbox/inside"
)

// atStart has nothing to do: no sandbox's process 1 is this binary.
func atStart() {}

// ownSocket is the control socket of the sidecar that this is run in.
func ownSocket() string { return cmp.Or(os.Getenv("EXEAT_CONTROL"), inside.ControlSocket) }

// settle words a command, and all below it, for where no sandbox is named.
func settle(cmd *cobra.Command) {
	cmd.Use = strings.NewReplacer(" SANDBOX | -f FILE", " [-f FILE]", " [SANDBOX]", "", " SANDBOX", "", "{-f FILE | -s SANDBOX}", "[-f FILE]").Replace(cmd.Use)
	cmd.Example = "" // they name sandboxes
	if socket := cmd.Flags().Lookup("socket"); socket != nil {
		socket.Usage = "the control socket at `PATH`"
	}
	for _, child := range cmd.Commands() {
		settle(child)
	}
	if !cmd.HasParent() {
		cmd.Long += `

This is exeat inside a sidecar: SANDBOX is left out everywhere, for it is the one
behind this sidecar ("@" in exeat policy diff).`
	}
}

// startCommands say where to run them: there is no container engine in here, and
// what is started here would not be in the sandbox.
func startCommands(s *streams) []*cobra.Command {
	var commands []*cobra.Command
	for _, name := range []string{"run", "up", "down", "attach", "detach", "exec", "compose", "ps"} {
		commands = append(commands, &cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return &exitError{code: statusUsage, err: errors.New(name + " does not work inside a sidecar: run it outside, where the container engine is")}
			},
		})
	}
	return append(commands, newDialCommand(s), newResolvConfCommand(s))
}

// engineFlag is no flag here.
type engineFlag struct{}

func (engineFlag) register(*cobra.Command) {}

func (engineFlag) open(_ context.Context, _ io.Writer, name string) (guarded, error) {
	return guarded{}, usagef("%q: inside a sidecar leave the sandbox's name out", name)
}

// guarded is a sandbox as a command reaches it.
type guarded struct{ *client.Client }

// health is what there is to say of a sandbox besides its own answer.
func (guarded) health() []api.Health { return nil }

// completeNames offers nothing: no sandbox is named.
func completeNames() ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// notice words the restriction notice. Templates are left out: with text/template
// the linker keeps every exported method of the binary, which is 2.7 MB.
func notice(doc policy.Document, _ string) (string, error) { return policy.DefaultNotice(doc), nil }

const (
	noticeTemplates = false
	aboutTemplates  = ""
)

// runCapabilities is what `run` can hold, which does not work here.
func runCapabilities() policy.Capabilities { return policy.Capabilities{} }

// newResolvConfCommand is what `attach` runs in a container of its own.
func newResolvConfCommand(s *streams) *cobra.Command {
	return &cobra.Command{
		Use: "resolv.conf", Hidden: true, Args: arguments(0, 0),
		RunE: func(*cobra.Command, []string) error { return inside.ResolvConf(s.out) },
	}
}
