//go:build !image

package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestDocumentedCommandLinesExist parses every command line that the README and
// the help texts show, so that neither can promise a command or a flag that is
// not there.
func TestDocumentedCommandLinesExist(t *testing.T) {
	lines := map[string]string{} // line → where it stands
	for _, file := range []string{"../../../README.md", "../doc.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range regexp.MustCompile(`(?m)^(?:    |//\t)(exeat .*)$`).FindAllStringSubmatch(string(text), -1) {
			lines[line[1]] = file
		}
	}
	var collect func(*cobra.Command)
	collect = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			lines[strings.TrimSpace(line)] = "help of " + cmd.CommandPath()
		}
		for _, child := range cmd.Commands() {
			collect(child)
		}
	}
	collect(newRootCommand(&streams{}))
	for line, where := range lines {
		for _, words := range commandLines(line) {
			root := newRootCommand(&streams{})
			if err := parses(root, words); err != nil {
				t.Errorf("%s: %s: %v", where, line, err)
			}
		}
	}
}

// commandLines gives the arguments of each exeat in a line of shell, whose quotes
// and pipes are simple ones.
func commandLines(line string) [][]string {
	var found [][]string
	var current []string
	inside := false
	for _, word := range regexp.MustCompile(`'[^']*'|"[^"]*"|<\(|[|>)]|[^\s|>)]+`).FindAllString(line+" |", -1) {
		switch {
		case word == "exeat" && !inside:
			inside, current = true, nil
		case inside && (word == "|" || word == ">" || word == ")" || strings.HasPrefix(word, "#")):
			found = append(found, current)
			inside = false
		case inside:
			current = append(current, strings.Trim(word, `'"`))
		}
	}
	return found
}

// parses looks the command up and parses its flags and arguments, without running it.
func parses(root *cobra.Command, words []string) error {
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if cmd == root || cmd.HasSubCommands() {
		if len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
			return usagef("no such command: %s", rest[0])
		}
		return nil
	}
	if len(rest) > 0 && rest[len(rest)-1] == "--help" {
		return nil
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
