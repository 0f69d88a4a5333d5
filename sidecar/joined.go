//go:build linux

package sidecar

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/policy"
)

// OnBreach is what a failed probe leads to.
type OnBreach string

// The reactions to a breach. Either takes readiness away and records it.
const (
	BreachDeny   OnBreach = "deny"
	BreachReport OnBreach = "report"
)

// JoinedConfig is all that an operator says about a sidecar that shares a sandbox's
// network namespace. It is plain data: the keeper hands it to its workers.
type JoinedConfig struct {
	Version, Name string

	// Policy is what is in force where no state was kept; Phase names it.
	Policy policy.Document
	Phase  string
	Phases []policy.Phase
	// Floor are targets that are denied whatever is in force.
	Floor []string

	// Control is the path of the control socket; ControlUID and ControlGID may use
	// it besides our own uid.
	Control                string
	ControlUID, ControlGID *uint32
	// LogFile gets the log; "" is standard output.
	LogFile string
	// StateDir keeps the state over a restart; "" keeps it as long as the keeper
	// lives.
	StateDir string

	// Resolvers are asked for names; none leaves it to ResolvConf or to the
	// engine's DNS.
	Resolvers []string
	// ResolvConf, where not "", is a resolv.conf(5) that is read at the first start
	// alone, when nobody who could write it has joined yet.
	ResolvConf string
	Pins       map[string][]netip.Addr
	// UpstreamProxy is what everything is reached through; "" is nothing.
	UpstreamProxy string

	Inbound            []policy.Opening
	StrictDestinations bool
	// NetRaw says that the sandbox may have NET_RAW.
	NetRaw bool
	// NoEgressHook does without the netdev egress hook, as on Linux before 5.16.
	NoEgressHook bool
	OnBreach     OnBreach
	// Schedule is how often the bypass probe's safe cases are tried (default 5 min),
	// Drain how long open flows may take to end at SIGTERM (default 5 s).
	Schedule, Drain time.Duration
}

// The defaults.
const (
	defaultSchedule = 5 * time.Minute
	defaultDrain    = 5 * time.Second
)

func (c JoinedConfig) withDefaults() JoinedConfig {
	if c.OnBreach == "" {
		c.OnBreach = BreachDeny
	}
	if c.Schedule == 0 {
		c.Schedule = defaultSchedule
	}
	if c.Drain == 0 {
		c.Drain = defaultDrain
	}
	if c.Policy.Mode == "" {
		c.Policy.Mode = policy.ModeNoNetwork
	}
	return c
}

// floor reads Floor.
func (c JoinedConfig) floor() ([]policy.Target, error) {
	var all []policy.Target
	for _, text := range c.Floor {
		t, err := policy.ParseTarget(text)
		if err != nil {
			return nil, fmt.Errorf("floor %q: %w", text, err)
		}
		all = append(all, t)
	}
	return all, nil
}

// upstreams reads Resolvers.
func (c JoinedConfig) upstreams() ([]dnsfilter.Upstream, error) {
	var all []dnsfilter.Upstream
	for _, r := range c.Resolvers {
		u, err := dnsfilter.ParseUpstream(r)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// upstreamProxy reads UpstreamProxy.
func (c JoinedConfig) upstreamProxy() (*url.URL, error) {
	if c.UpstreamProxy == "" {
		return nil, nil
	}
	u, err := url.Parse(c.UpstreamProxy)
	if err != nil {
		return nil, fmt.Errorf("upstream proxy: %w", err)
	}
	return u, nil
}

// What our own probes ask for. Nothing of it ever leaves: the name is pinned, and
// the addresses are not routed anywhere (RFC 5737, RFC 3849).
var (
	probeName  = "probe.exeat.invalid"
	probePin   = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	probeAddr4 = netip.AddrFrom4([4]byte{192, 0, 2, 254})
	probeAddr6 = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0xff, 0xff, 14: 0xff, 15: 0xfe})
)

// interfaceAddrs are the namespace's own addresses.
func interfaceAddrs() (map[netip.Addr]struct{}, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = struct{}{}
		}
	}
	return own, nil
}
