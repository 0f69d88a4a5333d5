//go:build !image

package cli

import (
	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sealed"
)

// ownSocket is the control socket that is meant where nobody names a sandbox: none.
func ownSocket() string { return "" }

// settle leaves every command as it is.
func settle(*cobra.Command) {}

// startCommands are the commands that start a sandbox, or need what does.
func startCommands(s *streams) []*cobra.Command {
	return []*cobra.Command{
		newRunCommand(s),
		newUpCommand(s),
		newDownCommand(s),
		newAttachCommand(s),
		newDetachCommand(s),
		newExecCommand(s),
		newComposeCommand(s),
		newDialCommand(s),
		newPsCommand(s),
	}
}

// notice words the restriction notice, in a template where text is one.
func notice(doc policy.Document, text string) (string, error) { return policy.Notice(doc, text) }

const (
	noticeTemplates = true
	aboutTemplates  = `

--template replaces the wording by a Go text/template over the policy, whose
members are .Mode, .Allowed and .Denied (lists of targets).`
)

// runCapabilities is what `run` can hold.
func runCapabilities() policy.Capabilities { return sealed.Capabilities() }

// health is what there is to say of a sandbox besides its own answer.
func (g guarded) health() []api.Health { return unsafeHealth(g.car) }
