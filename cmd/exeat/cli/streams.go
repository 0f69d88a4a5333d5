package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/exeat/exeat/policy"
)

// streams is what a command reads and writes, and how it was asked to write.
type streams struct {
	in     io.Reader
	out    io.Writer // results
	err    io.Writer // errors and warnings
	format outputFormat
	inUsed bool // standard input has been read
}

// json writes v as one line of JSON, with <, > and & left as they are.
func (s *streams) json(v any) error {
	enc := json.NewEncoder(s.out)
	enc.SetEscapeHTML(false)
	return outputError(enc.Encode(v))
}

// printf writes to standard output.
func (s *streams) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(s.out, format, args...)
	return outputError(err)
}

// complain writes one line to standard error. That it cannot be written is not
// reported, for there is nowhere left to say so.
func (s *streams) complain(format string, args ...any) {
	fmt.Fprintf(s.err, format+"\n", args...)
}

// warn writes each problem as a warning about the document called name.
func (s *streams) warn(name string, problems []policy.Problem) {
	for _, p := range problems {
		s.complain("%s: warning: %s", name, p)
	}
}

// outputError marks a failure to write results.
func outputError(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: statusUsage, err: fmt.Errorf("write output: %w", err)}
}

// outputFormat is the value of -o. The zero value is text.
type outputFormat string

const (
	formatText outputFormat = "text"
	formatJSON outputFormat = "json"
)

// String implements pflag.Value.
func (f *outputFormat) String() string {
	if *f == "" {
		return string(formatText)
	}
	return string(*f)
}

// Set implements pflag.Value.
func (f *outputFormat) Set(s string) error {
	switch v := outputFormat(s); v {
	case formatText, formatJSON:
		*f = v
		return nil
	}
	return fmt.Errorf("want text or json")
}

// Type implements pflag.Value.
func (f *outputFormat) Type() string { return "text|json" }

// yesNo is a cell that says whether.
func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// dash stands for an empty cell.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
