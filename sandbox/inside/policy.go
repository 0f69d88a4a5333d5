package inside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
)

// networkPolicy is the command by which Harbor swaps the policy. Status 0 says
// that the policy is in force: what it forbids has stopped.
func networkPolicy(ctx context.Context, c Call) int {
	document, err := policyOf(c.Args)
	if err != nil {
		c.complain("network-policy: %v", err)
		return statusUsage
	}
	to := client.New(c.socket())
	defer to.Close()
	result, err := to.SwapDocument(ctx, document, api.SwapRequest{})
	if err != nil {
		c.complain("network-policy: %v", err)
		return statusNo
	}
	for _, w := range result.Warnings {
		c.complain("network-policy: warning: %s", w)
	}
	return statusDone
}

// policyOf is the policy that a command line of network-policy means.
func policyOf(args []string) ([]byte, error) {
	usage := errors.New("want allow-all, deny-all, or allow with the hosts")
	if len(args) == 0 {
		return nil, usage
	}
	switch verb, hosts := args[0], args[1:]; {
	case verb == "allow":
		return allowlist(hosts)
	case len(hosts) > 0:
		return nil, fmt.Errorf("%s takes no host: %w", verb, usage)
	case verb == "allow-all":
		return []byte(`"public"`), nil
	case verb == "deny-all":
		return []byte(`"no-network"`), nil
	default:
		return nil, fmt.Errorf("%q: %w", verb, usage)
	}
}

// allowlist allows hosts and nothing else; none is an allowlist of nothing.
func allowlist(hosts []string) ([]byte, error) {
	return json.Marshal(struct {
		Mode    string   `json:"network_mode"`
		Allowed []string `json:"allowed_hosts"`
	}{"allowlist", append([]string{}, hosts...)})
}
