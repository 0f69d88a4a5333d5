package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
)

// suggestionDistance is how many letters may differ between what was written
// and what is offered in its place.
const suggestionDistance = 2

// didYouMean is the end of a complaint about word: the nearest of choices, or
// nothing where none is near. Prefix is put before the choice.
func didYouMean(prefix, word string, choices []string) string {
	best, bestDistance := "", suggestionDistance+1
	for _, c := range choices {
		d := policy.EditDistance(strings.ToLower(word), c)
		if d < bestDistance || (strings.HasPrefix(c, strings.ToLower(word)) && bestDistance > suggestionDistance) {
			best, bestDistance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + prefix + best + "?"
}

// groupOf makes a command that only holds others: bare it prints its help, and
// an unknown word is a usage error that offers the nearest command.
func groupOf(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		return usagef("unknown command %q for %q%s", args[0], cmd.CommandPath(), didYouMean("", args[0], names))
	}
	return cmd
}

// arguments is a cobra.PositionalArgs: at least low and at most high arguments
// (any number where high is negative), else a usage error that shows the form.
func arguments(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return usagef("missing argument: %s", cmd.UseLine())
		case high >= 0 && len(args) > high:
			return usagef("unexpected argument %q: %s", args[high], cmd.UseLine())
		}
		return nil
	}
}
