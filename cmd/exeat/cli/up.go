//go:build !image

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sandbox"
)

// sidecarFlags are the flags of every command that starts a sidecar.
type sidecarFlags struct {
	engineFlag
	policy        policyFlags
	image         string
	resolvers     []string
	hosts         []string
	upstreamProxy string
	floor         []string
	inbound       []string
	sidecarArgs   []string
}

func (f *sidecarFlags) register(cmd *cobra.Command) {
	f.engineFlag.register(cmd)
	f.policy.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.image, "sidecar-image", sandbox.DefaultImage, "the `IMAGE` of the sidecar (see make image)")
	flags.StringArrayVar(&f.resolvers, "resolver", nil, "ask the DNS server `ADDR[:PORT]` or tls://[NAME@]ADDR (repeatable; default: the engine's)")
	flags.StringArrayVar(&f.hosts, "add-host", nil, "pin a name: `NAME=ADDR[,ADDR]` (repeatable)")
	flags.StringVar(&f.upstreamProxy, "upstream-proxy", "", "reach everything through the HTTP proxy at `URL`")
	flags.StringArrayVar(&f.floor, "floor", nil, "deny this `TARGET` in every mode, whatever is swapped in (repeatable)")
	flags.StringArrayVar(&f.inbound, "inbound", nil, "let new connections in to `PORT[/tcp|udp]` (repeatable)")
	flags.StringArrayVar(&f.sidecarArgs, "sidecar-arg", nil, "a further `ARG` for the engine's run of the sidecar, such as --memory=64m (repeatable)")
	for _, name := range []string{"policy", "phases"} {
		if err := cmd.MarkFlagFilename(name); err != nil {
			panic(err) // the flag is not defined: a mistake in this function
		}
	}
}

// input is what the flags come to, checked as far as it can be without an engine.
func (f *sidecarFlags) input(s *streams, name string) (sandbox.Spec, beginning, error) {
	spec := sandbox.Spec{Name: name, Image: f.image, EngineArgs: f.sidecarArgs, FindResolver: len(f.resolvers) == 0}
	if err := checkName(name); err != nil {
		return spec, beginning{}, err
	}
	begin, err := f.policy.read(s)
	if err != nil {
		return spec, begin, err
	}
	if _, err := parseAll("floor", policy.ParseTarget, f.floor); err != nil {
		return spec, begin, err
	}
	if _, err := parseHosts(f.hosts); err != nil {
		return spec, begin, err
	}
	if _, err := parseUpstreamProxy(f.upstreamProxy); err != nil {
		return spec, begin, err
	}
	spec.Args = append(spec.Args, "--name", name)
	for flag, values := range map[string][]string{
		"--resolver": f.resolvers, "--add-host": f.hosts, "--floor": f.floor, "--inbound": f.inbound,
	} {
		for _, value := range values {
			spec.Args = append(spec.Args, flag+"="+value)
		}
	}
	slices.Sort(spec.Args[2:])
	if f.upstreamProxy != "" {
		spec.Args = append(spec.Args, "--upstream-proxy", f.upstreamProxy)
	}
	return spec, begin, nil
}

// netRawFlag is --sandbox-net-raw: whether the sidecar must hold what NET_RAW
// could go round.
type netRawFlag bool

// String implements pflag.Value.
func (f *netRawFlag) String() string { return yesNo(bool(*f)) }

// Set implements pflag.Value.
func (f *netRawFlag) Set(s string) error {
	if s != "yes" && s != "no" {
		return errors.New("want yes or no")
	}
	*f = s == "yes"
	return nil
}

// Type implements pflag.Value.
func (f *netRawFlag) Type() string { return "yes|no" }

func newUpCommand(s *streams) *cobra.Command {
	var flags sidecarFlags
	var publish []string
	var network string
	netRaw := netRawFlag(true)
	cmd := &cobra.Command{
		Use:   "up NAME",
		Short: "Start a sidecar for containers to join",
		Long: `Starts a sidecar and waits until it guards its network namespace. Then it prints
what to add to "docker run", or "podman run": a container that joins has no
unguarded moment, for the namespace is the sidecar's.

Ports are published here, not on the container that joins. Without a policy
nothing is reached. Remove the sidecar with "exeat down".`,
		Example: `  exeat up task-17 --allow pypi.org --allow '*.pythonhosted.org'
  docker run --rm $(exeat up task-17 --mode public --floor metadata.internal) python:3 python app.py
  exeat up web --publish 127.0.0.1:8080:80 --phases task.toml --phase setup`,
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, begin, err := flags.input(s, args[0])
			if err != nil {
				return err
			}
			spec.Network, spec.NoNetRaw = network, !bool(netRaw)
			if err := publishPorts(&spec, publish); err != nil {
				return err
			}
			engine, err := flags.find(cmd.Context())
			if err != nil {
				return err
			}
			return s.up(cmd.Context(), engine, spec, begin)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringArrayVarP(&publish, "publish", "p", nil, "publish a port, `[[IP:]HOST:]PORT`, and let connections in to it (repeatable)")
	cmd.Flags().StringVar(&network, "network", "", "connect the sidecar to the engine's `NETWORK`")
	cmd.Flags().Var(&netRaw, "sandbox-net-raw", "whether a container that joins may have NET_RAW")
	return cmd
}

// publishPorts publishes ports on the sidecar, and lets in what comes to them.
func publishPorts(spec *sandbox.Spec, publish []string) error {
	spec.Publish = publish
	for _, p := range publish {
		port, err := sandbox.InboundPort(p)
		if err != nil {
			return &usageError{err}
		}
		spec.Args = append(spec.Args, "--inbound="+port)
	}
	return nil
}

// upReport is what `up -o json` prints.
type upReport struct {
	Name       string   `json:"name"`
	Engine     string   `json:"engine"`
	Container  string   `json:"container"`
	Generation uint64   `json:"generation"`
	RunArgs    []string `json:"run_args"`
}

// up starts a sidecar with a policy in force and says how to join it.
func (s *streams) up(ctx context.Context, engine *sandbox.Engine, spec sandbox.Spec, begin beginning) error {
	id, result, err := s.startSidecar(ctx, engine, spec, begin)
	if err != nil {
		return err
	}
	report := upReport{
		Name: spec.Name, Engine: engine.Name(), Container: id, Generation: result.Generation,
		RunArgs: joinArgs(spec.Name),
	}
	if s.format == formatJSON {
		return s.json(report)
	}
	s.complain("exeat: sidecar %s is ready: %s, generation %d", spec.Name, begin.document.Mode, result.Generation)
	return s.printf("%s\n", strings.Join(report.RunArgs, " "))
}

// joinArgs are the arguments of `docker run` that put a container behind a
// sidecar and leave it nothing that could undo it.
func joinArgs(sidecar string) []string {
	return []string{
		"--network=container:" + sidecar, "--cap-drop=NET_RAW", "--cap-drop=NET_ADMIN",
		"--security-opt=no-new-privileges",
	}
}

// startSidecar starts a sidecar, which denies everything, and swaps to the policy
// that it is to begin with.
func (s *streams) startSidecar(ctx context.Context, engine *sandbox.Engine, spec sandbox.Spec, begin beginning) (string, api.SwapResult, error) {
	var result api.SwapResult
	id, err := engine.Start(ctx, spec)
	if err != nil {
		return "", result, err
	}
	c := engine.Client(id)
	defer c.Close()
	if result, err = enterFirst(ctx, c, begin); err != nil {
		return "", result, errors.Join(err, engine.Remove(context.WithoutCancel(ctx), id))
	}
	s.warn("policy", result.Warnings)
	return id, result, nil
}

// enterFirst puts the policy in force that a sandbox begins with.
func enterFirst(ctx context.Context, c *client.Client, begin beginning) (api.SwapResult, error) {
	if len(begin.phases) > 0 {
		phases := make([]api.Phase, 0, len(begin.phases))
		for _, p := range begin.phases {
			phases = append(phases, api.Phase{Name: p.Name, Policy: p.Policy, Source: p.Source})
		}
		if _, err := c.SetPhases(ctx, phases); err != nil {
			return api.SwapResult{}, fmt.Errorf("set the phases: %w", err)
		}
	}
	if begin.phase != "" {
		return c.EnterPhase(ctx, begin.phase, api.EnterRequest{})
	}
	return c.Swap(ctx, api.SwapRequest{Policy: &begin.document})
}

func newDownCommand(s *streams) *cobra.Command {
	var flag engineFlag
	cmd := &cobra.Command{
		Use:   "down NAME",
		Short: "Remove the sidecar that \"exeat up\" started",
		Long: `Removes the sidecar, once no-network is in force where a container is still behind
it. That one keeps the rules, and reaches nothing.`,
		Example: "  exeat down task-17",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			engine, err := flag.find(cmd.Context())
			if err != nil {
				return err
			}
			car, err := engine.Any(cmd.Context(), args[0])
			if err != nil {
				return noSidecar(err)
			}
			if car.Attached() != "" {
				return usagef("%s was attached to a running container: use exeat detach", args[0])
			}
			for _, c := range car.Joined {
				s.complain("exeat: warning: container %s is still behind it, and reaches nothing from now on", c.Name)
			}
			return s.shutAndRemove(cmd.Context(), engine, car)
		},
	}
	flag.register(cmd)
	return cmd
}

// shutAndRemove removes a sidecar and leaves nothing open behind it, as far as it
// still answers.
func (s *streams) shutAndRemove(ctx context.Context, engine *sandbox.Engine, car sandbox.Sidecar) error {
	if car.Running && len(car.Joined) > 0 {
		if err := engine.Shut(ctx, car); err != nil {
			s.complain("exeat: warning: no-network could not be put in force first, so addresses that the policy lists are still reached: %v", err)
		}
	}
	return engine.Remove(ctx, car.ID)
}

// noSidecar gives what the engine does not know the status of what does not answer.
func noSidecar(err error) error {
	if errors.Is(err, sandbox.ErrNoContainer) || errors.Is(err, sandbox.ErrNotGuarded) {
		return &exitError{code: statusUnreachable, err: err}
	}
	return err
}
