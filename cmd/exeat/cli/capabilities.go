package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
)

func newCapabilitiesCommand(s *streams) *cobra.Command {
	var flag sandboxFlag
	cmd := &cobra.Command{
		Use:   "capabilities [SANDBOX]",
		Short: "Say what an enforcement point can hold",
		Long: `Prints what the enforcement point of a sandbox can hold, one line a capability:
yes, no, or "unknown" where it could not be probed. Without SANDBOX it is what
"exeat run" can hold. A policy that needs a "no" is refused whole.`,
		Example: "  exeat capabilities\n  exeat capabilities task-17 -o json",
		Args:    flag.optional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && flag.path() == "" {
				return s.writeCapabilities(runCapabilities())
			}
			c, _, err := flag.take(cmd.Context(), s.err, args)
			if err != nil {
				return err
			}
			defer c.Close()
			has, err := c.Capabilities(cmd.Context())
			if err != nil {
				return err
			}
			return s.writeCapabilities(has)
		},
	}
	flag.register(cmd)
	return cmd
}

func (s *streams) writeCapabilities(has policy.Capabilities) error {
	if s.format == formatJSON {
		return s.json(has)
	}
	data, err := json.Marshal(has)
	if err != nil {
		return err
	}
	var byName map[string]*bool
	if err := json.Unmarshal(data, &byName); err != nil {
		return err
	}
	names := make([]string, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, name := range names {
		word := "unknown"
		if has := byName[name]; has != nil {
			word = yesNo(*has)
		}
		fmt.Fprintf(table, "%s\t%s\n", name, word)
	}
	return outputError(table.Flush())
}
