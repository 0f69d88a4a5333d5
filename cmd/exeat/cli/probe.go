//go:build !image

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/probe"
)

// probeFlags are the flags of `probe`.
type probeFlags struct {
	sandbox      sandboxFlag
	cases        []string
	safe, strict bool
	list         bool
	targets      []string
	name         string
	through      string
	allowed      string
	marker       string
	child        string
	remove       bool
}

func newProbeCommand(s *streams) *cobra.Command {
	var flags probeFlags
	cmd := &cobra.Command{
		Use:   "probe [SANDBOX]",
		Short: "Try the known ways round the enforcement",
		Long: `Tries every way of the catalogue (B01 to B79) that needs no second host, from
where it is run: inside a sandbox, with the sandbox's own capabilities. With
SANDBOX the container engine does so, which can start a program in there; the
sidecar behind --socket tries what it can from beside the sandbox.

Each case is "held", a "leak", or "not-proven" where it could not be tried, or
where silence was all that could be seen from inside. What is sent goes to
documentation addresses, where nobody is; to the link's own gateway; and to the
addresses of cloud metadata services. The policy should allow none of these.

With --target the attacks go to a host of yours, which looks for the markers that
"-o json" lists: so what is not proven from inside becomes proven there.

Exit status: 0 no leak; 1 a leak, or with --strict something not proven.`,
		Example: "  exeat run -- exeat probe\n  exeat run --allow pypi.org -- exeat probe --allowed pypi.org -o json\n  exeat probe task-17 --case B01 --case B63",
		Args:    arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.probe(cmd.Context(), flags, args)
		},
	}
	flags.sandbox.register(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&flags.cases, "case", nil, "try the case `NUMBER` only (repeatable)")
	f.BoolVar(&flags.safe, "safe", false, "leave out what could disturb the sandbox")
	f.BoolVar(&flags.strict, "strict", false, "take what is not proven for a failure")
	f.BoolVar(&flags.list, "list", false, "list the catalogue, and try nothing")
	f.StringArrayVar(&flags.targets, "target", nil, "attack the address `ADDR`, one of each family at most")
	f.StringVar(&flags.name, "name", "", "attack the name `NAME`, which the policy does not allow")
	f.StringVar(&flags.through, "through", "", "an allowed IPv4 address `ADDR`, for attacks that hide behind one")
	f.StringVar(&flags.allowed, "allowed", "", "an allowed name `NAME`, for attacks that show one")
	f.StringVar(&flags.marker, "marker", "", "begin every marker with `TEXT`")
	f.StringVar(&flags.child, "child", "", "")
	f.BoolVar(&flags.remove, "remove", false, "")
	for _, name := range []string{"child", "remove"} {
		if err := f.MarkHidden(name); err != nil {
			panic(err) // the flag is not defined: a mistake in this function
		}
	}
	return cmd
}

// probe runs the probe here, or asks a sandbox's engine for it.
func (s *streams) probe(ctx context.Context, flags probeFlags, args []string) error {
	switch {
	case flags.child != "":
		return &exitError{code: probe.Child([]string{flags.child})}
	case flags.remove:
		return removeSelf()
	case flags.list:
		return s.writeRows()
	case len(args) == 0 && flags.sandbox.socket == "":
		report, err := flags.runHere(ctx)
		if err != nil {
			return err
		}
		return s.writeReport(report, flags.strict)
	}
	c, _, err := flags.sandbox.take(ctx, s.err, args)
	if err != nil {
		return err
	}
	defer c.Close()
	if c.car == nil {
		return s.probeThere(ctx, c.Client, flags)
	}
	container, err := commandTarget(*c.car, args[0])
	if err != nil {
		return err
	}
	there, err := newContainerProbe(c.engine, container)
	if err != nil {
		return err
	}
	report, err := there.run(ctx, flags)
	if err != nil {
		return err
	}
	return s.writeReport(report, flags.strict)
}

// probeThere asks the engine of a sandbox without a container.
func (s *streams) probeThere(ctx context.Context, c *client.Client, flags probeFlags) error {
	if len(flags.targets) > 0 || flags.name+flags.through+flags.allowed+flags.marker != "" {
		return usagef("--target, --name, --through, --allowed and --marker are for a probe from inside: an engine chooses what it attacks")
	}
	answer, err := c.Probe(ctx, api.ProbeRequest{Cases: flags.cases, Safe: flags.safe})
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == api.CodeNotImplemented {
		// No leak was found, nor was any looked for: that must not look like an answer.
		return &exitError{code: statusUsage, err: errors.New("nothing more can be started in a sealed sandbox, which is one way in less: start the probe as its command, exeat run -- exeat probe")}
	}
	if err != nil {
		return err
	}
	report := probe.Report{Held: answer.Held, Leaks: answer.Leaks, NotProven: answer.NotProven}
	for _, c := range answer.Cases {
		report.Cases = append(report.Cases, probe.Finding{
			ID: c.ID, Attack: c.Attack, Expected: c.Expected, Seen: c.Seen, Verdict: probe.Verdict(c.Verdict), Why: c.Why,
		})
	}
	return s.writeReport(report, flags.strict)
}

// runHere tries the cases from this process.
func (f probeFlags) runHere(ctx context.Context) (probe.Report, error) {
	options := probe.Options{IDs: f.cases, Safe: f.safe, Marker: f.marker}
	options.Aim = probe.Aim{Name: f.name, AllowedName: f.allowed}
	for _, text := range f.targets {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return probe.Report{}, usagef("--target %q: want an address", text)
		case addr.Unmap().Is4():
			options.Aim.IPv4 = addr.Unmap()
		default:
			options.Aim.IPv6 = addr
		}
	}
	if f.through != "" {
		addr, err := netip.ParseAddr(f.through)
		if err != nil || !addr.Is4() {
			return probe.Report{}, usagef("--through %q: want an IPv4 address", f.through)
		}
		options.Aim.Through = addr
	}
	if self, err := os.Executable(); err == nil {
		options.Child = func(args ...string) []string {
			return append([]string{self, "probe", "--child"}, args...)
		}
	}
	report, err := probe.Run(ctx, options)
	if err != nil {
		return report, usagef("%w", err)
	}
	return report, nil
}

// writeReport writes the findings; the exit status says whether all is well.
func (s *streams) writeReport(report probe.Report, strict bool) error {
	var err error
	if s.format == formatJSON {
		err = s.json(report)
	} else {
		err = s.writeFindings(report)
	}
	if err == nil && (report.Leaks > 0 || strict && report.NotProven > 0) {
		return errNo()
	}
	return err
}

func (s *streams) writeFindings(report probe.Report) error {
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CASE\tVERDICT\tATTACK\tEXPECTED\tSEEN")
	for _, f := range report.Cases {
		seen := f.Seen
		if f.Why != "" {
			seen += ": " + f.Why
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", f.ID, f.Verdict, f.Attack, f.Expected, seen)
	}
	if err := table.Flush(); err != nil {
		return outputError(err)
	}
	return s.printf("%d held, %d leaks, %d not proven\n", report.Held, report.Leaks, report.NotProven)
}

// writeRows lists the catalogue.
func (s *streams) writeRows() error {
	if s.format == formatJSON {
		return s.json(probe.Rows())
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ROW\tATTACK\tDEFENCE")
	for _, r := range probe.Rows() {
		fmt.Fprintf(table, "%s\t%s\t%s\n", r.ID, r.Attack, r.Defence)
	}
	return outputError(table.Flush())
}
