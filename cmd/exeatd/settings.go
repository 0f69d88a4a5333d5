//go:build linux

package main

import (
	"time"

	"github.com/spf13/pflag"
)

// defaultControl is where the image has its control socket.
const defaultControl = "/run/exeat/control.sock"

// settings are the flags, as they were written. Each may come from the
// environment or the configuration file as well: see layer.
type settings struct {
	config string

	policy, mode  string
	allow, deny   []string
	phases, phase string
	floor         []string

	control                string
	controlUID, controlGID string
	log, state             string

	resolvers        []string
	resolverFromFile bool
	hosts            []string
	upstreamProxy    string

	inbound            []string
	onBreach           string
	strictDestinations bool
	netRaw             string
	noEgressHook       bool
	name               string
	schedule, drain    time.Duration
}

func (s *settings) registerControl(flags *pflag.FlagSet) {
	flags.StringVar(&s.config, "config", "", "read settings from the TOML `FILE`")
	flags.StringVar(&s.control, "control", defaultControl, "serve the control API on a Unix socket at `PATH`; none for no socket")
}

func (s *settings) register(flags *pflag.FlagSet) {
	s.registerControl(flags)
	flags.SortFlags = false
	flags.StringVar(&s.policy, "policy", "", "the policy document in `FILE`, where no state was kept")
	flags.StringArrayVar(&s.allow, "allow", nil, "allow only this `TARGET` (repeatable)")
	flags.StringArrayVar(&s.deny, "deny", nil, "deny this `TARGET` (repeatable): a hole in --allow, or a denylist without it")
	flags.StringVar(&s.mode, "mode", "", "the `MODE`: public, no-network, allowlist or denylist")
	flags.StringVar(&s.phases, "phases", "", "named policies from a phases document in `FILE`")
	flags.StringVar(&s.phase, "phase", "", "begin in the phase `NAME` of --phases (default: its first)")
	flags.StringArrayVar(&s.floor, "floor", nil, "deny this `TARGET` in every mode, whatever is swapped in (repeatable)")
	flags.StringVar(&s.controlUID, "control-uid", "", "let the user with this `UID` use the control socket, besides uid 0")
	flags.StringVar(&s.controlGID, "control-gid", "", "let the group with this `GID` use the control socket")
	flags.StringVar(&s.log, "log", "-", "write the log, JSON lines, to `FILE`, which is set aside when it is full; - is standard output")
	flags.StringVar(&s.state, "state", "", "keep what is in force in `DIR`, and go on with it at a restart")
	flags.StringArrayVar(&s.resolvers, "resolver", nil, "ask the DNS server `ADDR[:PORT]` or tls://[NAME@]ADDR (repeatable; default: what the engine's DNS asks)")
	flags.BoolVar(&s.resolverFromFile, "resolver-from-file", false, "ask the servers of /etc/resolv.conf, read once for each --state: only where exeatd starts before anybody joins")
	flags.StringArrayVar(&s.hosts, "add-host", nil, "pin a name: `NAME=ADDR[,ADDR]` (repeatable)")
	flags.StringVar(&s.upstreamProxy, "upstream-proxy", "", "reach everything through the HTTP proxy at `URL`")
	flags.StringArrayVar(&s.inbound, "inbound", nil, "let new flows in to `PORT[/tcp|/udp]`, or all (repeatable)")
	flags.StringVar(&s.onBreach, "on-breach", "deny", "when a probe fails or finds a leak: `deny` everything, or report it and go on")
	flags.BoolVar(&s.strictDestinations, "strict-destinations", false, "refuse unknown addresses on ports 80 and 443 too, unread")
	flags.StringVar(&s.netRaw, "sandbox-net-raw", "yes", "whether the sandbox may have NET_RAW: `yes` or no")
	flags.BoolVar(&s.noEgressHook, "no-egress-hook", false, "do without the netdev egress hook, as on Linux before 5.16: the sandbox must lack NET_RAW")
	flags.StringVar(&s.name, "name", "", "call the sandbox `NAME` in status")
	flags.DurationVar(&s.schedule, "schedule", 5*time.Minute, "try the bypass probe's safe cases every `TIME`, for ever")
	flags.DurationVar(&s.drain, "drain", 5*time.Second, "at SIGTERM, give open connections this `TIME` to end")
}
