package sealed

import "github.com/exeat/exeat/policy"

// Capabilities are what the sealed shape holds (spec section 8). There is no
// path for packets out of the sandbox, only listeners for TCP and DNS: so neither
// UDP to targets nor ICMP can be let through.
func Capabilities() policy.Capabilities {
	yes, no := true, false
	return policy.Capabilities{
		DisableInternet:  &yes,
		NetworkAllowlist: &yes, NetworkDenylist: &yes,
		NetworkAllowlistHostnames: &yes, NetworkAllowlistWildcardHostnames: &yes,
		NetworkAllowlistIPv4Addresses: &yes, NetworkAllowlistIPv6Addresses: &yes,
		NetworkAllowlistIPv4CIDRs: &yes, NetworkAllowlistIPv6CIDRs: &yes,
		DynamicNetworkPolicy: &yes,
		TargetPorts:          &yes,
		TargetUDP:            &no,
		ICMP:                 &no,
	}
}
