//go:build !image

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/sandbox"
)

// containerFlags are the flags of `run` that concern a container.
type containerFlags struct {
	engineFlag
	image, sidecarImage, network string
	publish, engineArgs          []string
}

func (f *containerFlags) register(cmd *cobra.Command) {
	f.engineFlag.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.image, "image", "", "run CMD in a container of `IMAGE`")
	flags.StringVar(&f.sidecarImage, "sidecar-image", sandbox.DefaultImage, "with --image, the `IMAGE` of the sidecar (see make image)")
	flags.StringVar(&f.network, "network", "", "with --image, connect it to the engine's `NETWORK`")
	flags.StringArrayVarP(&f.publish, "publish", "p", nil, "with --image, publish a port, `[[IP:]HOST:]PORT`, and let connections in to it (repeatable)")
	flags.StringArrayVar(&f.engineArgs, "engine-arg", nil, "with --image, a further `ARG` for the engine's run, such as --volume=/src:/src (repeatable)")
}

// unused complains of flags that say nothing without --image.
func (f *containerFlags) unused() error {
	if f.engine != "" || f.network != "" || len(f.publish)+len(f.engineArgs) > 0 {
		return usagef("--engine, --network, --publish and --engine-arg belong to a container: say which --image")
	}
	return nil
}

// sidecar gives the sidecar's flags, as `up` has them.
func (f *runFlags) sidecar() (sidecarFlags, error) {
	if f.log != "" || len(f.keep) > 0 || f.asRoot || f.proxyEnv {
		return sidecarFlags{}, usagef("--log, --keep, --as-root and --proxy-env don't go with --image (for the log: exeat logs -f)")
	}
	return sidecarFlags{
		engineFlag: f.container.engineFlag, policy: f.policy, image: f.container.sidecarImage,
		resolvers: f.resolvers, hosts: f.hosts, upstreamProxy: f.upstreamProxy, floor: f.floor,
	}, nil
}

// runContainer is `run --image`: a sidecar, a container behind it, and nothing
// left of either.
func (s *streams) runContainer(ctx context.Context, flags runFlags, args []string) error {
	sidecar, err := flags.sidecar()
	if err != nil {
		return err
	}
	if flags.name == "" {
		flags.name = defaultName(args[0])
	}
	spec, begin, err := sidecar.input(s, flags.name)
	if err != nil {
		return err
	}
	spec.Network, spec.NoNetRaw = flags.container.network, true
	if err := publishPorts(&spec, flags.container.publish); err != nil {
		return err
	}
	ctx, stop := notifyEnd(ctx)
	defer stop()
	engine, err := sidecar.find(ctx)
	if err != nil {
		return err
	}
	id, _, err := s.startSidecar(ctx, engine, spec, begin)
	if err != nil {
		return err
	}
	defer s.closing("sidecar", func() error { return engine.Remove(context.WithoutCancel(ctx), id) })
	agent := flags.name + "-agent"
	defer s.closing("container", func() error {
		if err := engine.Remove(context.WithoutCancel(ctx), agent); !errors.Is(err, sandbox.ErrNoContainer) {
			return err
		}
		return nil
	})
	if err := engine.Try(ctx, agent, agentArgs(flags, args)); err != nil {
		return err
	}
	command := append([]string{"run", "--rm", "--name", agent}, s.terminal(agentArgs(flags, args))...)
	err = s.engineCommand(ctx, engine, command)
	if !flags.quiet {
		if summaryErr := s.containerSummary(context.WithoutCancel(ctx), engine, id); summaryErr != nil {
			s.complain("exeat: warning: %v", summaryErr)
		}
	}
	return err
}

// agentArgs are the arguments of the engine's run of CMD.
func agentArgs(flags runFlags, command []string) []string {
	args := append(joinArgs(flags.name), flags.container.engineArgs...)
	return append(append(args, flags.container.image), command...)
}

// containerSummary prints what was allowed and denied.
func (s *streams) containerSummary(ctx context.Context, engine *sandbox.Engine, id string) error {
	c := engine.Client(id)
	defer c.Close()
	summary, err := c.Summary(ctx)
	if err != nil {
		return fmt.Errorf("the summary: %w", err)
	}
	return outputError(writeSummary(s.err, summary.Counts))
}
