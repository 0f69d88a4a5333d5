package main

import "github.com/spf13/cobra"

func newPolicyDiffCommand(s *streams) *cobra.Command {
	return &cobra.Command{Use: "diff A B", Args: arguments(2, 2)}
}
