package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// Features are what the kernel at hand can do beyond what the ruleset needs. nil
// is "could not be probed".
type Features struct {
	// Cgroup: our sockets can be matched by control group (Linux 5.13).
	Cgroup *bool
	// Egress: the hook that packet sockets cannot avoid (5.16).
	Egress *bool
	// AnyLink: that hook on every present and future link (6.17).
	AnyLink *bool
}

// Probe finds out what the kernel can hold by giving it the real rules: in a
// scratch namespace where one may be made, else as a transaction that is checked
// and never committed. A capability is false where the kernel refused, nil where
// it could not be asked; the error says why.
func Probe() (policy.Capabilities, Features, error) {
	var caps policy.Capabilities
	var features Features
	err := scratch(func(try func(Ruleset) error) error {
		var errs []error
		held, err := holds(try, JoinedRuleset(probeInput()))
		if err != nil {
			errs = append(errs, err)
		}
		caps = everyCapability(held)
		for feature, r := range map[**bool]Ruleset{
			&features.Cgroup:  probeRules(Hook{Type: "filter", Point: Output}, rule(InCgroup(1, 1<<40), Drop())),
			&features.Egress:  probeEgress(Hook{Type: "filter", Point: Egress, Devices: []string{"lo"}}),
			&features.AnyLink: probeEgress(Hook{Type: "filter", Point: Egress, AnyDevice: true}),
		} {
			// That a feature is missing is an answer, not an error.
			if *feature, err = holds(try, r); *feature == nil {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	return caps, features, err
}

// holds says whether the kernel takes a ruleset; nil with an error where it does
// not let itself be asked, false with the kernel's reason.
func holds(try func(Ruleset) error, r Ruleset) (*bool, error) {
	err := try(r)
	no, yes := false, true
	switch {
	case err == nil:
		return &yes, nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
		return nil, fmt.Errorf("cannot probe nftables: %w", err)
	}
	return &no, fmt.Errorf("the kernel refuses the ruleset: %w", err)
}

// check gives the kernel a whole ruleset in a transaction without an end, which
// it checks and then takes back.
func (k *Kernel) check(r Ruleset) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := newBatch()
	for _, t := range r.Tables {
		b.addTable(t)
		for _, s := range t.Sets {
			k.compiler.addSet(b, t, s.Name, s)
			b.elements(t.Family, t.Name, s.Name, s, unix.NFT_MSG_NEWSETELEM, s.Elements)
		}
		for _, c := range t.Chains {
			b.addChain(t, c)
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				k.compiler.addRule(b, t, c.Name, r, func(set string) string { return set })
			}
		}
	}
	b.dry = true
	return k.sock.run(b)
}

// scratch runs f with a way to try rulesets: by applying them in a new network
// namespace; or, where none may be made, by a check in our own, which leaves it
// as it is but does not see everything that is wrong.
func scratch(f func(try func(Ruleset) error) error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		isolated := unix.Unshare(unix.CLONE_NEWNET) == nil
		if !isolated {
			runtime.UnlockOSThread() // else the thread ends with its namespace
		}
		k, err := Open()
		if err != nil {
			done <- err
			return
		}
		try := k.check
		if isolated {
			try = func(r Ruleset) error {
				if err := k.Apply(r); err != nil {
					return err
				}
				return k.Delete(r.Tables...)
			}
		}
		done <- errors.Join(f(try), k.Close())
	}()
	return <-done
}

func everyCapability(holds *bool) policy.Capabilities {
	return policy.Capabilities{
		DisableInternet: holds, NetworkAllowlist: holds, NetworkAllowlistHostnames: holds, NetworkAllowlistWildcardHostnames: holds,
		NetworkAllowlistIPv4Addresses: holds, NetworkAllowlistIPv6Addresses: holds,
		NetworkAllowlistIPv4CIDRs: holds, NetworkAllowlistIPv6CIDRs: holds,
		DynamicNetworkPolicy: holds, NetworkDenylist: holds, TargetPorts: holds, TargetUDP: holds, ICMP: holds,
	}
}

// probeInput uses every kind of set and rule.
func probeInput() JoinedInput {
	target := func(s string) policy.Target {
		return policy.Target{Prefix: netip.MustParsePrefix(s)}
	}
	d := policy.Document{
		Mode:    policy.ModeAllowlist,
		Allowed: []policy.Target{target("192.0.2.1/32"), target("192.0.2.0/24"), target("2001:db8::1/128"), target("2001:db8::/32")},
		Denied:  []policy.Target{target("192.0.2.2/32"), {Name: "probe.invalid"}},
	}
	ports := Ports{TCP: 1, DNS: 2, Explicit: 3}
	return JoinedInput{
		V4: ports, V6: ports, Own: Own{UID: 1, Bears: Secrets{Mark: 1, Priority: 1}}, Secrets: Secrets{Mark: 1, Priority: 1}, ProbeMark: 2,
		Policy: policy.Compile(d, policy.Options{}), EngineDNS: true, NetRaw: true, LogGroup: 1,
		Inbound: []policy.Opening{{Port: 1}, {Port: 1, Protocol: policy.UDP}},
	}
}

func probeRules(h Hook, rules ...Rule) Ruleset {
	return Ruleset{Tables: []Table{{Family: Inet, Name: probeTable, Chains: []Chain{{Name: "probe", Hook: &h, Rules: rules}}}}}
}

func probeEgress(h Hook) Ruleset {
	return Ruleset{Tables: []Table{{Family: Netdev, Name: probeTable, Chains: []Chain{{Name: "probe", Hook: &h}}}}}
}
