package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/policy"
)

// noticeReport is what `notice -o json` prints.
type noticeReport struct {
	Notice string `json:"notice"` // empty where nothing is restricted
}

func newNoticeCommand(s *streams) *cobra.Command {
	var file, template string
	var flag sandboxFlag
	cmd := &cobra.Command{
		Use:   "notice SANDBOX | -f FILE",
		Short: "Print the text that tells an agent what it may reach",
		Long: `Prints the restriction notice of a policy, in force or in a file: what an agent should be told, so that
it does not take a restriction for a passing fault and retry for ever. A policy
that restricts nothing prints nothing.` + aboutTemplates,
		Example: `  exeat notice task-17
  exeat notice -f policy.json
  exeat notice -f policy.json --template notice.tmpl`,
		Args: flag.optional,
		RunE: func(cmd *cobra.Command, args []string) error {
			doc, err := s.eitherPolicy(cmd.Context(), flag, file, args)
			if err != nil {
				return err
			}
			return s.writeNotice(doc, template)
		},
	}
	flag.register(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "the policy: a `FILE`, or - for standard input")
	if noticeTemplates {
		cmd.Flags().StringVar(&template, "template", "", "replace the wording by the template in `FILE`")
	}
	return cmd
}

// writeNotice prints the notice of a policy in the wording of a template file,
// or in the default one where templateFile is empty.
func (s *streams) writeNotice(doc policy.Document, templateFile string) error {
	var text string
	if templateFile != "" {
		data, err := s.readInput(templateFile)
		if err != nil {
			return err
		}
		if text = string(data); text == "" {
			return fmt.Errorf("template %s is empty", templateFile)
		}
	}
	written, err := notice(doc, text)
	if err != nil {
		return fmt.Errorf("notice: %w", err)
	}
	if s.format == formatJSON {
		return s.json(noticeReport{written})
	}
	return s.printf("%s", written)
}
