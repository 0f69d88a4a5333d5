package policy

// Capabilities say what an enforcement point can hold (policy.md section 8). A
// nil member could not be probed, which is a different answer from false.
type Capabilities struct {
	DisableInternet                   *bool `json:"disable_internet"`
	NetworkAllowlist                  *bool `json:"network_allowlist"`
	NetworkAllowlistHostnames         *bool `json:"network_allowlist_hostnames"`
	NetworkAllowlistWildcardHostnames *bool `json:"network_allowlist_wildcard_hostnames"`
	NetworkAllowlistIPv4Addresses     *bool `json:"network_allowlist_ipv4_addresses"`
	NetworkAllowlistIPv6Addresses     *bool `json:"network_allowlist_ipv6_addresses"`
	NetworkAllowlistIPv4CIDRs         *bool `json:"network_allowlist_ipv4_cidrs"`
	NetworkAllowlistIPv6CIDRs         *bool `json:"network_allowlist_ipv6_cidrs"`
	DynamicNetworkPolicy              *bool `json:"dynamic_network_policy"`
	NetworkDenylist                   *bool `json:"network_denylist"`
	TargetPorts                       *bool `json:"target_ports"`
	TargetUDP                         *bool `json:"target_udp"`
	ICMP                              *bool `json:"icmp"`
}

// Check says whether the document can be held whole. The error is an Errors
// with every capability that is needed and missing; warnings are traffic that a
// bare address target implies and that will be denied.
func (c Capabilities) Check(d Document) (warnings []Problem, err error) {
	return nil, Errors{{Message: "policy: not built yet"}}
}
