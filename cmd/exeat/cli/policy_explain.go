package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
)

// explanation is one line of `policy explain`.
type explanation struct {
	Target  string         `json:"target"`
	Verdict policy.Verdict `json:"verdict"`
	Rule    string         `json:"rule"`
	Reason  policy.Reason  `json:"reason"`
}

func newPolicyExplainCommand(s *streams) *cobra.Command {
	var file, sandbox string
	var flag sandboxFlag
	var floor []string
	cmd := &cobra.Command{
		Use:   "explain {-f FILE | -s SANDBOX} TARGET...",
		Short: "Say what would be decided for a target, and why",
		Long: `Prints one line a target: verdict, target, reason, and the rule that decided
("-" where no target did).

TARGET is a name or an address, with ":port" (443 when left out) and "/tcp" or
"/udp" (tcp when left out); an IPv6 address with a port needs brackets.
Exit status: 0 all are allowed, 1 any is denied.`,
		Example: `  exeat policy explain -f policy.json pypi.org registry.example.com:80
  exeat policy explain -f policy.json 203.0.113.10:53/udp '[2001:db8::1]:22'
  exeat policy explain -s task-17 pypi.org
  exeat policy explain -f policy.json --floor '*.internal.test' db.internal.test`,
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if sandbox != "" || flag.socket != ownSocket() || ownSocket() != "" && file == "" {
				if file != "" || len(floor) > 0 {
					return usagef("a sandbox has its own policy and floor: leave out -f and --floor")
				}
				return s.explainInForce(cmd.Context(), flag, sandbox, args)
			}
			requests, err := parseAll("target", policy.ParseAskTarget, args)
			if err != nil {
				return err
			}
			compiled, err := s.compile(file, floor)
			if err != nil {
				return err
			}
			explanations := make([]explanation, len(args))
			for i, request := range requests {
				d := compiled.Decide(request)
				explanations[i] = explanation{args[i], d.Verdict, d.Rule, d.Reason}
			}
			return s.writeExplanations(explanations)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the policy: a `FILE`, or - for standard input")
	if ownSocket() == "" {
		cmd.Flags().StringVarP(&sandbox, "sandbox", "s", "", "the policy in force in `SANDBOX`")
	}
	flag.engineFlag.register(cmd)
	flag.registerSocket(cmd, "the policy in force at the control socket at `PATH`")
	cmd.Flags().StringArrayVar(&floor, "floor", nil, "a `TARGET` that the enforcement point denies in every mode (repeatable)")
	return cmd
}

// explainInForce asks a running sandbox, which knows for which names it handed an
// address out.
func (s *streams) explainInForce(ctx context.Context, flag sandboxFlag, sandbox string, targets []string) error {
	var names []string
	if flag.path() == "" {
		names = []string{sandbox}
	}
	c, _, err := flag.take(ctx, s.err, names)
	if err != nil {
		return err
	}
	defer c.Close()
	answers, err := c.Explain(ctx, targets...)
	if err != nil {
		return err
	}
	explanations := make([]explanation, 0, len(answers))
	for _, a := range answers {
		explanations = append(explanations, explanation{a.Target, a.Verdict, a.Rule, a.Reason})
	}
	return s.writeExplanations(explanations)
}

// compile reads and compiles the policy of -f with a floor.
func (s *streams) compile(file string, floor []string) (*policy.Compiled, error) {
	if file == "" {
		return nil, usagef("say which policy: -f FILE or -s SANDBOX")
	}
	targets, err := parseAll("floor", policy.ParseTarget, floor)
	if err != nil {
		return nil, err
	}
	doc, err := s.readPolicy(file)
	if err != nil {
		return nil, err
	}
	return policy.Compile(doc, policy.Options{Floor: targets}), nil
}

// parseAll parses every argument, and complains of all that are not legal.
func parseAll[T any](what string, parse func(string) (T, error), args []string) ([]T, error) {
	parsed := make([]T, 0, len(args))
	var faults []error
	for _, arg := range args {
		v, err := parse(arg)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s %q: %w", what, arg, err))
			continue
		}
		parsed = append(parsed, v)
	}
	if len(faults) > 0 {
		return nil, &usageError{errors.Join(faults...)}
	}
	return parsed, nil
}

// writeExplanations prints them, and is a "no" where any is denied.
func (s *streams) writeExplanations(explanations []explanation) error {
	denied := false
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, e := range explanations {
		denied = denied || e.Verdict != policy.Allow
		if s.format == formatJSON {
			if err := s.json(e); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", e.Verdict, e.Target, e.Reason, cmp.Or(e.Rule, "-")) // errors stick until Flush
	}
	if err := table.Flush(); err != nil {
		return outputError(err)
	}
	if denied {
		return errNo()
	}
	return nil
}
