package cli

import "github.com/spf13/cobra"

func newPolicyCommand(s *streams) *cobra.Command {
	return groupOf(&cobra.Command{
		Use:   "policy",
		Short: "Check, explain, compare and swap policies",
		Long: `A policy is one JSON document: "public", "no-network", or an object:

  {"network_mode": "allowlist", "allowed_hosts": ["pypi.org", "*.example.com:443", "203.0.113.0/24"]}
  {"network_mode": "denylist",  "denied_hosts":  [{"host": "registry.example.com", "port": 443}]}`,
	},
		newPolicyGetCommand(s),
		newPolicySetCommand(s),
		newPolicyCheckCommand(s),
		newPolicyExplainCommand(s),
		newPolicyDiffCommand(s),
	)
}
