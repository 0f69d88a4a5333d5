package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
)

// planFlags are the layers of a plan as they are written on the command line.
type planFlags struct {
	overrides    []string
	task, recipe string
	fresh        bool
}

func newPlanCommand(s *streams) *cobra.Command {
	var flags planFlags
	cmd := &cobra.Command{
		Use:   "plan [FILE]",
		Short: "Print the policy of each phase, and where it comes from",
		Long: `Reads a phases document (exeat's own in JSON or TOML, a task file in TOML, or
JSON with *_network_policy keys) and prints the policy that each phase resolves
to, with the source of every value. With --task and --recipe instead of FILE the
layers are merged: override, then task, then recipe, then "public".

The K of --override is a phase's name or its *_network_policy key. POLICY is
a mode ("public", "no-network"), a JSON document, or a file (a path with a "/",
or one that ends in ".json").`,
		Example: `  exeat plan task.toml
  exeat plan phases.json --override run=no-network
  exeat plan --task task.json --recipe recipe.json --override baseline=./lab.json
  exeat plan --task task.json --fresh --override evaluation_baseline_network_policy=public`,
		Args: arguments(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			layers := flags.task != "" || flags.recipe != ""
			if len(args) == 0 && !layers && len(flags.overrides) == 0 {
				return usagef("nothing to plan: give FILE, --task, --recipe or --override")
			}
			if len(args) == 1 && layers {
				return usagef("FILE stands without --task and --recipe: it would be a third layer")
			}
			input, err := s.planInput(args, flags)
			if err != nil {
				return err
			}
			name := "plan" // of layers, each problem names its own
			if len(args) == 1 {
				name = title(args[0])
			}
			plan, warnings, err := policy.ReadPlan(input)
			if err != nil {
				return invalid(name, err)
			}
			s.warn(name, warnings)
			return s.writePlan(plan)
		},
	}
	cmd.Flags().StringArrayVar(&flags.overrides, "override", nil, "set one phase's policy: `K=POLICY` (repeatable)")
	cmd.Flags().StringVar(&flags.task, "task", "", "the task's phases: a `FILE`")
	cmd.Flags().StringVar(&flags.recipe, "recipe", "", "the recipe's phases: a `FILE`")
	cmd.Flags().BoolVar(&flags.fresh, "fresh", false, "plan for a second, fresh sandbox for the evaluation")
	return cmd
}

// planInput reads the files of a plan.
func (s *streams) planInput(args []string, flags planFlags) (policy.PlanInput, error) {
	overrides, err := s.readOverrides(flags.overrides)
	if err != nil {
		return policy.PlanInput{}, err
	}
	input := policy.PlanInput{Overrides: overrides, Fresh: flags.fresh}
	for _, layer := range []struct {
		name   string
		source **policy.PhasesSource
	}{
		{strings.Join(args, ""), &input.File},
		{flags.task, &input.Task},
		{flags.recipe, &input.Recipe},
	} {
		if layer.name == "" {
			continue
		}
		data, err := s.readInput(layer.name)
		if err != nil {
			return policy.PlanInput{}, err
		}
		*layer.source = &policy.PhasesSource{Name: title(layer.name), Data: data}
	}
	return input, nil
}

// readOverrides reads the values of --override.
func (s *streams) readOverrides(values []string) (map[string]policy.Document, error) {
	overrides := make(map[string]policy.Document, len(values))
	for _, value := range values {
		key, text, found := strings.Cut(value, "=")
		if !found || key == "" || text == "" {
			return nil, usagef("--override %q: want PHASE=POLICY, such as run=no-network", value)
		}
		if _, twice := overrides[key]; twice {
			return nil, usagef("--override %s: given twice", key)
		}
		doc, err := s.policyArgument("--override "+key, text)
		if err != nil {
			return nil, err
		}
		overrides[key] = doc
	}
	return overrides, nil
}

// policyArgument reads a policy written on the command line: a JSON document,
// a file, or else a bare mode.
func (s *streams) policyArgument(name, text string) (policy.Document, error) {
	switch {
	case strings.ContainsAny(text[:1], `{["`): // JSON already
	case text == "-" || strings.Contains(text, "/") || strings.HasSuffix(text, ".json"):
		return s.readPolicy(text)
	default:
		quoted, err := json.Marshal(text)
		if err != nil {
			return policy.Document{}, fmt.Errorf("%s: %w", name, err)
		}
		text = string(quoted)
	}
	doc, _, err := policy.Parse([]byte(text))
	if err != nil {
		return policy.Document{}, invalid(name, err)
	}
	return doc, nil
}

// writePlan prints the phases in their order.
func (s *streams) writePlan(plan policy.Plan) error {
	if s.format == formatJSON {
		return s.json(plan)
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PHASE\tSOURCE\tPOLICY") // errors stick until Flush
	for _, phase := range plan.Phases {
		doc, err := phase.Policy.MarshalJSON()
		if err != nil {
			return fmt.Errorf("print phase %s: %w", phase.Name, err)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", phase.Name, phase.Source, doc)
	}
	return outputError(table.Flush())
}
