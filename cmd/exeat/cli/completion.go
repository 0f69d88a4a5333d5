package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

func newCompletionCommand(s *streams) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Print a completion script for a shell",
		Example: `  source <(exeat completion bash)
  exeat completion zsh > "${fpath[1]}/_exeat"
  exeat completion fish > ~/.config/fish/completions/exeat.fish`,
		ValidArgs:             shells,
		Args:                  arguments(1, 1),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return outputError(root.GenBashCompletionV2(s.out, true))
			case "zsh":
				return outputError(root.GenZshCompletion(s.out))
			case "fish":
				return outputError(root.GenFishCompletion(s.out, true))
			case "powershell":
				return outputError(root.GenPowerShellCompletionWithDesc(s.out))
			}
			return usagef("unknown shell %q%s (known: %s)", args[0], didYouMean("", args[0], shells), strings.Join(shells, ", "))
		},
	}
}
