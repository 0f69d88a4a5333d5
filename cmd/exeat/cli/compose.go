//go:build !image

package cli

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sandbox/compose"
)

// composeFlags are the flags of `compose`.
type composeFlags struct {
	sidecar          sidecarFlags
	perService, full bool
}

func newComposeCommand(s *streams) *cobra.Command {
	var flags composeFlags
	cmd := &cobra.Command{
		Use:   "compose FILE...",
		Short: "Put the services of a Compose project behind a sidecar",
		Long: `Prints an override file for Docker Compose ` + compose.MinimumVersion + ` or later that puts every service of
the project behind one sidecar, or with --per-service behind one each: published
ports and networks move to the sidecar, services start once it guards them, and
services that share its namespace reach each other by name on its loopback.

With --full it is the whole project in one file, for an older Compose. What cannot
be put behind a sidecar is refused, with all there is to say about it at once.`,
		Example: `  exeat compose compose.yaml --allow pypi.org > exeat.yaml
  exeat compose --per-service --phases phases.json compose.yaml
  exeat compose --full --mode no-network compose.yaml > guarded.yaml`,
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.compose(cmd, flags, args)
		},
	}
	flags.sidecar.register(cmd)
	for _, unused := range []string{"engine", "sidecar-arg"} {
		if err := cmd.Flags().MarkHidden(unused); err != nil {
			panic(err) // the flag is not defined: a mistake in this function
		}
	}
	cmd.Flags().BoolVar(&flags.perService, "per-service", false, "give every service a sidecar of its own")
	cmd.Flags().BoolVar(&flags.full, "full", false, "print the whole project, for a Compose that knows no !reset")
	return cmd
}

func (s *streams) compose(cmd *cobra.Command, flags composeFlags, files []string) error {
	spec, _, err := flags.sidecar.input(s, "exeat")
	if err != nil {
		return err
	}
	project, err := compose.Load(cmd.Context(), files)
	if err != nil {
		return fmt.Errorf("read the Compose project: %w", err)
	}
	options := compose.Options{Image: flags.sidecar.image, PerService: flags.perService, Sidecar: spec.Args[2:]} // less --name
	if spec.FindResolver {
		options.Sidecar = append(options.Sidecar, "--resolver-from-file")
	}
	if err := flags.sidecar.policy.arguments(&options); err != nil {
		return err
	}
	plan, err := compose.Make(project, options)
	var problems compose.Problems
	if errors.As(err, &problems) {
		invalid := make(policy.Errors, 0, len(problems))
		for _, p := range problems {
			invalid = append(invalid, policy.Problem{Message: p})
		}
		return &exitError{code: statusNo, err: &documentError{name: files[0], problems: invalid}}
	}
	if err != nil {
		return err
	}
	write := plan.Override
	if flags.full {
		write = plan.Full
	}
	text, err := write()
	if err != nil {
		return err
	}
	return s.printf("%s", text)
}

// arguments gives the policy to a sidecar that Compose starts: files are mounted,
// and everything else is on its command line.
func (f *policyFlags) arguments(o *compose.Options) error {
	for _, file := range []struct{ flag, path string }{{"policy", f.file}, {"phases", f.phases}} {
		if file.path == "" {
			continue
		}
		path, err := filepath.Abs(file.path)
		if err != nil {
			return err
		}
		inside := "/etc/exeat/" + file.flag + filepath.Ext(path)
		o.Mounts = append(o.Mounts, path+":"+inside+":ro")
		o.Sidecar = append(o.Sidecar, "--"+file.flag+"="+inside)
	}
	if f.phase != "" {
		o.Sidecar = append(o.Sidecar, "--phase="+f.phase)
	}
	if f.mode != "" {
		o.Sidecar = append(o.Sidecar, "--mode="+f.mode)
	}
	for _, target := range f.allow {
		o.Sidecar = append(o.Sidecar, "--allow="+target)
	}
	for _, target := range f.deny {
		o.Sidecar = append(o.Sidecar, "--deny="+target)
	}
	return nil
}
