package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
)

func newPolicyDiffCommand(s *streams) *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "Say what B allows that A did not, and the reverse",
		Long: `Compares two policies by what they decide, not by how they are written: one line
a target that either names, "+" before what B allows and A does not, "-" before
what A allows and B does not, then the same for what neither names ("everything
else"). A target stands for what no narrower line says. Nothing is printed where
the two decide alike.

A and B are files, or @SANDBOX for the policy in force in one; one of them may be
- for standard input.`,
		Example: `  exeat policy diff setup.json run.json
  exeat policy diff @task-17 run.json
  exeat policy check new.json | exeat policy diff policy.json -`,
		Args: arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var sides [2]*policy.Compiled
			for i, name := range args {
				doc, err := s.fileOrSandbox(cmd.Context(), name)
				if err != nil {
					return err
				}
				sides[i] = policy.Compile(doc, policy.Options{})
			}
			return s.writeDiff(policy.Compare(sides[0], sides[1]))
		},
	}
}

// fileOrSandbox reads the policy in a file, or of "@SANDBOX" the one in force.
func (s *streams) fileOrSandbox(ctx context.Context, name string) (policy.Document, error) {
	sandbox, ok := strings.CutPrefix(name, "@")
	switch {
	case !ok:
		return s.readPolicy(name)
	case ownSocket() == "":
		return s.eitherPolicy(ctx, sandboxFlag{}, "", []string{sandbox})
	case sandbox != "":
		return policy.Document{}, usagef("%s: write @ alone, there is one sandbox here", name)
	}
	return s.eitherPolicy(ctx, sandboxFlag{}, "", nil)
}

// writeDiff prints what was gained, then what was lost.
func (s *streams) writeDiff(diff policy.Diff) error {
	if s.format == formatJSON {
		return s.json(diff)
	}
	for _, target := range diff.Allowed {
		if err := s.printf("+ %s\n", target); err != nil {
			return err
		}
	}
	for _, target := range diff.Denied {
		if err := s.printf("- %s\n", target); err != nil {
			return err
		}
	}
	return nil
}
