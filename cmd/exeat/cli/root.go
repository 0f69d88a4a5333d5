package cli

import (
	"github.com/spf13/cobra"
)

// newRootCommand assembles the command tree; a command is added here in one line
// and lives in a file of its own.
func newRootCommand(s *streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "exeat",
		Short: "Decide what a sandboxed agent may reach on the network",
		Long: `exeat decides, packet by packet and name by name, what a sandboxed agent may
reach on the network, and changes its mind the moment it is told to.

Exit status: 0 yes or done; 1 a "no": invalid, denied, a failed check; 2 usage or
unreadable input; 3 the sidecar cannot be reached.`,
		SilenceErrors: true, // streams.exit writes them
		SilenceUsage:  true,
	}
	groupOf(root, append(startCommands(s),
		newStatusCommand(s),
		newPolicyCommand(s),
		newPhaseCommand(s),
		newLogsCommand(s),
		newFlowsCommand(s),
		newProbeCommand(s),
		newLearnCommand(s),
		newCapabilitiesCommand(s),
		newPlanCommand(s),
		newNoticeCommand(s),
		newVersionCommand(s),
		newCompletionCommand(s),
	)...)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(usage)
	root.CompletionOptions.DisableDefaultCmd = true // ours has the house's errors

	root.PersistentFlags().VarP(&s.format, "output", "o", "how to write results")
	complete(root, "output", string(formatText), string(formatJSON))
	settle(root)
	return root
}

// usage writes cobra's own usage. A group is runnable so that it can complain; its
// usage is its commands.
func usage(cmd *cobra.Command) error {
	if cmd.HasAvailableSubCommands() {
		run := cmd.RunE
		cmd.RunE = nil
		defer func() { cmd.RunE = run }()
	}
	return new(cobra.Command).UsageFunc()(cmd)
}

// complete offers fixed words as completions of a flag's value.
func complete(cmd *cobra.Command, flag string, words ...string) {
	completion := cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, completion); err != nil {
		panic(err) // the flag is not defined: a mistake in this package
	}
}
