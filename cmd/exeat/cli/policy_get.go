package cli

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
)

func newPolicyGetCommand(s *streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get SANDBOX",
		Short: "Print the policy in force in a sandbox",
		Long: `Prints the policy in force as a document that "policy set" takes. With -o json
its generation, phase, lease and floor come with it.`,
		Example: "  exeat policy get task-17\n  exeat policy get task-17 -o json",
	}
	return sandboxCommand(cmd, 0, 0, func(ctx context.Context, c *client.Client, _ []string) error {
		state, err := c.Policy(ctx)
		if err != nil {
			return err
		}
		if s.format == formatJSON {
			return s.json(state)
		}
		return s.writeDocument(state.Policy)
	})
}

// writeDocument prints a policy for people to read and edit.
func (s *streams) writeDocument(doc policy.Document) error {
	data, err := doc.MarshalJSON()
	if err != nil {
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, data, "", "  "); err != nil {
		return err
	}
	return s.printf("%s\n", indented.String())
}
