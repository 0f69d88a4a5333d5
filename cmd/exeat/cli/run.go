//go:build !image

package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// statusRefused is `run`'s own failure: the command was not started (docker run
// and timeout(1) use it so).
const statusRefused = 125

// runFlags are the flags of `run`.
type runFlags struct {
	policy        policyFlags
	name          string
	resolvers     []string
	hosts         []string
	upstreamProxy string
	floor         []string
	log           string
	keep          []string
	asRoot        bool
	proxyEnv      bool
	quiet         bool
	container     containerFlags
}

func newRunCommand(s *streams) *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] CMD [ARG...]",
		Short: "Run a command that reaches only what a policy allows",
		Long: `Runs CMD in namespaces of its own, where all TCP and every DNS question comes to
exeat and everything else is rejected at once. It needs no root and no container
engine. CMD keeps its user, files, directory, terminal, signals and exit status.

Without a policy CMD reaches nothing. The policy can be swapped while CMD runs:
see "exeat ps", "exeat policy set" and "exeat phase". When CMD ends, a summary of
what was allowed and denied goes to standard error.

As root, CMD runs as the user who called sudo; with --as-root, or where nobody
did, as root with a container's capabilities.

With --image, CMD runs in a container of that image instead, behind a sidecar that
is started first, and both are removed afterwards.

Exit status: CMD's own, 128+N when it ended by signal N; 125 when exeat refused
or failed to start it, 126 when CMD is not executable, 127 when it is not found.`,
		Example: `  exeat run --allow pypi.org --allow files.pythonhosted.org -- pip install requests
  exeat run --mode public --floor metadata.internal -- ./agent
  exeat run --phases task.toml --phase agent --name task-17 -- ./agent
  exeat run --policy policy.json --log audit.jsonl -- bash
  exeat run --image python:3 --allow pypi.org --allow files.pythonhosted.org -- pip install requests`,
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return refused(s.run(cmd.Context(), flags, args))
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return refused(flagError(cmd, err)) })
	flags.register(cmd)
	return cmd
}

func (f *runFlags) register(cmd *cobra.Command) {
	f.policy.register(cmd)
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows CMD is CMD's
	flags.StringVar(&f.name, "name", "", "call the sandbox `NAME` (default: CMD and our process id)")
	flags.StringArrayVar(&f.resolvers, "resolver", nil, "ask the DNS server `ADDR[:PORT]` or tls://[NAME@]ADDR (repeatable; default: the host's)")
	flags.StringArrayVar(&f.hosts, "add-host", nil, "pin a name: `NAME=ADDR[,ADDR]` (repeatable)")
	flags.StringVar(&f.upstreamProxy, "upstream-proxy", "", "reach everything through the HTTP proxy at `URL`")
	flags.StringArrayVar(&f.floor, "floor", nil, "deny this `TARGET` in every mode, whatever is swapped in (repeatable)")
	flags.StringVar(&f.log, "log", "", "append the log to `FILE` as JSON lines; - is standard error")
	flags.StringArrayVar(&f.keep, "keep", nil, "leave the socket or file at `PATH` visible, though it may be a way out (repeatable)")
	flags.BoolVar(&f.asRoot, "as-root", false, "as root, stay root instead of becoming the user who called sudo")
	flags.BoolVar(&f.proxyEnv, "proxy-env", false, "set HTTP_PROXY and its like, for clients that must be told of a proxy")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print no summary at the end")
	f.container.register(cmd)
	for _, name := range []string{"policy", "phases", "log"} {
		if err := cmd.MarkFlagFilename(name); err != nil {
			panic(err) // the flag is not defined: a mistake in this function
		}
	}
}

// refused turns every failure of our own into status 125: CMD's statuses, which
// come without an error, are CMD's.
func refused(err error) error {
	var exit *exitError
	if err == nil || errors.As(err, &exit) && (exit.err == nil || exit.code != statusNo && exit.code != statusUsage) {
		return err
	}
	if exit != nil {
		err = exit.err
	}
	return &exitError{code: statusRefused, err: err}
}

// runInput is what the flags of `run` come to, checked.
type runInput struct {
	flags     runFlags
	args      []string
	beginning beginning
	floor     []policy.Target
	name      string
	socket    string
}

// readRun checks everything that can be checked before a sandbox is made.
func (s *streams) readRun(flags runFlags, args []string) (runInput, error) {
	in := runInput{flags: flags, args: args, name: flags.name}
	var err error
	if in.beginning, err = flags.policy.read(s); err != nil {
		return in, err
	}
	if in.floor, err = parseAll("floor", policy.ParseTarget, flags.floor); err != nil {
		return in, err
	}
	if in.name == "" {
		in.name = defaultName(args[0])
	}
	if err := checkName(in.name); err != nil {
		return in, err
	}
	in.socket = socketPath(in.name)
	return in, makeRuntimeDir(filepath.Dir(in.socket))
}

// defaultName makes a name of the command's and of our process id.
func defaultName(command string) string {
	base := filepath.Base(command)
	if checkName(base) != nil || len(base) > 40 {
		base = "run"
	}
	return base + "-" + strconv.Itoa(os.Getpid())
}

// openLog opens the log of --log. close may be called whatever it returned.
func (s *streams) openLog(path string) (w logWriter, err error) {
	switch path {
	case "":
		return logWriter{}, nil
	case "-":
		return logWriter{Writer: s.err}, nil
	}
	f, err := audit.OpenFile(path, logBytes, logFiles)
	if err != nil {
		return logWriter{}, err
	}
	return logWriter{Writer: f, close: f.Close}, nil
}

// A log of --log is set aside when it has grown to logBytes, and logFiles such
// are kept.
const (
	logBytes = 64 << 20
	logFiles = 4
)

// run is `exeat run`: it returns once the command has ended and nothing is left.
func (s *streams) run(ctx context.Context, flags runFlags, args []string) error {
	if flags.container.image != "" {
		return s.runContainer(ctx, flags, args)
	}
	if err := flags.container.unused(); err != nil {
		return err
	}
	in, err := s.readRun(flags, args)
	if err != nil {
		return err
	}
	return s.runSealed(ctx, in)
}

// closing runs a clean-up whose failure can only be told.
func (s *streams) closing(what string, end func() error) {
	if err := end(); err != nil {
		s.complain("exeat: close the %s: %v", what, err)
	}
}
