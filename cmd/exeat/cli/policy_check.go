package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
)

// checkReport is what `policy check -o json` prints.
type checkReport struct {
	Valid     bool             `json:"valid"`
	Canonical *policy.Document `json:"canonical"` // null when there is none
	Warnings  []policy.Problem `json:"warnings"`
	Errors    []policy.Problem `json:"errors"`
}

func newPolicyCheckCommand(s *streams) *cobra.Command {
	var provider string
	cmd := &cobra.Command{
		Use:   "check FILE|-",
		Short: "Validate a policy and print it in canonical form",
		Long: `Reads a policy and prints it in canonical form, with every error and warning.

With --provider, what the named enforcement point would not hold is an error too,
at the target that it would not hold. Exit status: 0 valid, 1 not.`,
		Example: `  exeat policy check policy.json
  echo '"no-network"' | exeat policy check -
  exeat policy check --provider modal policy.json
  exeat policy check -o json policy.json`,
		Args: arguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := knownProvider(provider); err != nil {
				return err
			}
			data, err := s.readInput(args[0])
			if err != nil {
				return err
			}
			report, err := check(data, provider)
			if err != nil {
				return err
			}
			return s.writeCheck(title(args[0]), report)
		},
	}
	cmd.Flags().StringVar(&provider, "provider", "", "ask whether `NAME` would hold the policy: "+strings.Join(policy.Providers(), ", "))
	complete(cmd, "provider", policy.Providers()...)
	return cmd
}

// knownProvider refuses a provider that is not in the table.
func knownProvider(name string) error {
	known := policy.Providers()
	if name == "" || slices.Contains(known, name) {
		return nil
	}
	return usagef("unknown provider %q%s (known: %s)", name, didYouMean("", name, known), strings.Join(known, ", "))
}

// check validates a document, for a provider where one is named.
func check(data []byte, provider string) (checkReport, error) {
	report := checkReport{Warnings: []policy.Problem{}, Errors: []policy.Problem{}}
	doc, warnings, err := policy.Parse(data)
	report.Warnings = append(report.Warnings, warnings...)
	if err != nil {
		var problems policy.Errors
		if !errors.As(err, &problems) {
			return checkReport{}, fmt.Errorf("check: %w", err)
		}
		report.Errors = append(report.Errors, problems...)
		return report, nil
	}
	report.Canonical = &doc
	if provider != "" {
		problems, err := policy.CheckProvider(doc, provider)
		if err != nil {
			return checkReport{}, fmt.Errorf("check: %w", err)
		}
		report.Errors = append(report.Errors, problems...)
	}
	report.Valid = len(report.Errors) == 0
	return report, nil
}

// writeCheck prints the report, and is a "no" where the document is not valid.
func (s *streams) writeCheck(name string, report checkReport) error {
	if s.format == formatJSON {
		if err := s.json(report); err != nil {
			return err
		}
		if !report.Valid {
			return errNo()
		}
		return nil
	}
	if report.Canonical != nil {
		if err := s.document(*report.Canonical); err != nil {
			return err
		}
	}
	s.warn(name, report.Warnings)
	if !report.Valid {
		return invalid(name, policy.Errors(report.Errors))
	}
	return nil
}

// document writes a policy in canonical form, indented for people.
func (s *streams) document(doc policy.Document) error {
	compact, err := doc.MarshalJSON()
	if err != nil {
		return fmt.Errorf("print the policy: %w", err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, compact, "", "  "); err != nil {
		return fmt.Errorf("print the policy: %w", err)
	}
	return s.printf("%s\n", indented.Bytes())
}
