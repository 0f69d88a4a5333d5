package inside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
)

// test is as much of test(1) as a health check takes: a file's existence and
// kind, and whether a string is empty.
func test(name string) Program {
	return func(_ context.Context, c Call) int {
		args := c.Args
		if name == "[" {
			if len(args) == 0 || args[len(args)-1] != "]" {
				c.complain("[: missing ]")
				return statusUsage
			}
			args = args[:len(args)-1]
		}
		holds, err := condition(args)
		switch {
		case err != nil:
			c.complain("%s: %v", name, err)
			return statusUsage
		case !holds:
			return statusNo
		}
		return statusDone
	}
}

func condition(args []string) (bool, error) {
	if len(args) > 0 && args[0] == "!" {
		holds, err := condition(args[1:])
		return !holds, err
	}
	switch len(args) {
	case 0:
		return false, nil
	case 1:
		return args[0] != "", nil
	case 3:
		switch args[1] {
		case "=", "==":
			return args[0] == args[2], nil
		case "!=":
			return args[0] != args[2], nil
		}
	case 2:
		switch args[0] {
		case "-n":
			return args[1] != "", nil
		case "-z":
			return args[1] == "", nil
		}
		return fileIs(args[0], args[1])
	}
	return false, fmt.Errorf("%q: not among the conditions that the image knows", strings.Join(args, " "))
}

// fileIs says whether the file has what the operator asks. One that is not there,
// or cannot be looked at, has nothing.
func fileIs(operator, name string) (bool, error) {
	info, err := os.Stat(name)
	there := err == nil
	switch operator {
	case "-e":
		return there, nil
	case "-f":
		return there && info.Mode().IsRegular(), nil
	case "-d":
		return there && info.IsDir(), nil
	case "-s":
		return there && info.Size() > 0, nil
	case "-S":
		return there && info.Mode()&os.ModeSocket != 0, nil
	case "-r":
		f, err := os.Open(name)
		if err != nil {
			return false, nil
		}
		return true, f.Close()
	}
	return false, fmt.Errorf("%s: not among the conditions that the image knows", operator)
}

// shell is as much of sh(1) as a health check takes: `sh -c` with commands of
// plain and quoted words, joined by ;, && and ||. Anything else is refused whole,
// before a command is run.
func shell(ctx context.Context, c Call) int {
	if len(c.Args) < 2 || c.Args[0] != "-c" {
		c.complain("sh: the image has no shell, but for: sh -c COMMAND")
		return statusUsage
	}
	steps, err := parseShell(c.Args[1])
	if err != nil {
		c.complain("sh: %v", err)
		return statusUsage
	}
	status := statusDone
	for _, s := range steps {
		if s.after == "&&" && status != statusDone || s.after == "||" && status == statusDone {
			continue
		}
		var exit bool
		if status, exit = c.step(ctx, s.words, status); exit {
			return status
		}
	}
	return status
}

// step runs one command of a shell's; exit says that the shell ends with it.
func (c Call) step(ctx context.Context, words []string, last int) (status int, exit bool) {
	name := words[0]
	switch name {
	case "true", ":":
		return statusDone, false
	case "false":
		return statusNo, false
	case "exit":
		if len(words) == 1 {
			return last, true
		}
		n, err := strconv.ParseUint(words[1], 10, 8)
		if err != nil {
			c.complain("sh: exit: %q is no status", words[1])
			return statusUsage, true
		}
		return int(n), true
	}
	inner := c
	inner.Args = words[1:]
	if program, ok := Find(name); ok && path.Base(name) != "sh" {
		return program(ctx, inner), false
	}
	cmd := exec.CommandContext(ctx, name, words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.In, c.Out, c.Err
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return statusDone, false
	case errors.As(err, &ended):
		return ended.ExitCode() & 0xff, false
	}
	c.complain("sh: %s: not found", name)
	return 127, false
}

// shellStep is one command and what stands before it: ";", "&&" or "||".
type shellStep struct {
	after string
	words []string
}

// parseShell splits a line into commands. What a real shell would do more with
// (variables, pipes, redirections, globs) is an error, except for the
// redirections of standard output and error to /dev/null, which are left out.
func parseShell(line string) ([]shellStep, error) {
	words, err := shellWords(line)
	if err != nil {
		return nil, err
	}
	var steps []shellStep
	current := shellStep{after: ";"}
	for _, w := range append(words, shellWord{text: ";", operator: true}) {
		if !w.operator {
			current.words = append(current.words, w.text)
			continue
		}
		if len(current.words) == 0 {
			if w.text == ";" && current.after == ";" {
				continue
			}
			return nil, fmt.Errorf("a command is missing at %q", w.text)
		}
		steps = append(steps, current)
		current = shellStep{after: w.text}
	}
	if len(steps) == 0 {
		return nil, errors.New("an empty command")
	}
	return steps, nil
}

type shellWord struct {
	text     string
	operator bool
}

// quiet are the redirections that a health check ends with.
func quiet() []string {
	return []string{">/dev/null", "> /dev/null", "1>/dev/null", "2>/dev/null", "2> /dev/null", "2>&1"}
}

func shellWords(line string) ([]shellWord, error) {
	var words []shellWord
	rest := line
	for {
		rest = strings.TrimLeft(rest, " \t\n")
		if rest == "" {
			return words, nil
		}
		if operator, ok := leading(rest, "&&", "||", ";"); ok {
			words = append(words, shellWord{operator, true})
			rest = rest[len(operator):]
			continue
		}
		if redirection, ok := leading(rest, quiet()...); ok {
			rest = rest[len(redirection):]
			continue
		}
		text, after, err := shellText(rest)
		if err != nil {
			return nil, err
		}
		words, rest = append(words, shellWord{text: text}), after
	}
}

func leading(s string, choices ...string) (string, bool) {
	for _, c := range choices {
		if strings.HasPrefix(s, c) {
			return c, true
		}
	}
	return "", false
}

// shellText reads one word with its quotes.
func shellText(s string) (text, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\'' || c == '"':
			end := strings.IndexByte(s[i+1:], c)
			if end < 0 {
				return "", "", fmt.Errorf("a %c is not closed", c)
			}
			quoted := s[i+1 : i+1+end]
			if c == '"' && strings.ContainsAny(quoted, "$`\\") {
				return "", "", fmt.Errorf("%q: the image's sh knows no variables", quoted)
			}
			b.WriteString(quoted)
			i += 1 + end
		case strings.IndexByte(" \t\n;", c) >= 0, strings.HasPrefix(s[i:], "&&"), strings.HasPrefix(s[i:], "||"):
			return b.String(), s[i:], nil
		case strings.IndexByte("$`\\|&<>(){}*?#~", c) >= 0:
			return "", "", fmt.Errorf("%q: the image's sh knows plain words, ;, && and || alone", s[i:])
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), "", nil
}
