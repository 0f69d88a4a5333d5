//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is the lab itself ("run" and "plots"), or one of the parts that it starts of its own
// binary inside its namespaces.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("want run, plots, origin, load or engine; see go doc ./bench")
	}
	switch args[0] {
	case "run":
		return runLab(ctx, args[1:], stdout, stderr)
	case "plots":
		return runPlots(ctx, args[1:], stderr)
	case "origin":
		return runOrigin(ctx, args[1:])
	case "load":
		return runLoad(ctx, args[1:], stdin, stdout)
	case "engine":
		return runEngine(ctx, args[1:], stdout)
	}
	return fmt.Errorf("unknown part %q", args[0])
}

// runLab measures the targets and writes what it found.
func runLab(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", os.Getenv("QUICK") == "1", "fewer and shorter rounds, and fail where a ratio is missed by more than 15 %")
	only := flags.String("only", "", "comma-separated targets, e.g. P1,P4")
	peers := flags.String("peers", "", "comma-separated peers, e.g. haproxy; default all that are installed")
	ours := flags.String("engine", "", "our side: a command that redirects as it likes is given {port} and {uid} (default: the bench's own engine)")
	rounds := flags.Int("rounds", 0, "how often everything is measured (default 7; 3 where quick)")
	notes := flags.String("notes", "bench/notes.md", "what was tried for the targets that are missed")
	results := flags.String("o", "bench/RESULTS.md", "where the results are written; - for none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	size := full
	if *quick {
		size = short
	}
	if *rounds > 0 {
		size.rounds = *rounds
	}
	tried, err := os.ReadFile(*notes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	lab, err := newLab(ctx, size, list(*peers), *ours, stderr)
	if err != nil {
		return err
	}
	report, measure := newReport(lab, string(tried)), once
	var gates *gate
	if *quick {
		gates = newGate(stderr)
		measure = gates.measure
	}
	for _, t := range targets() {
		if picked := list(*only); len(picked) > 0 && !contains(picked, t.id) {
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), lab.close())
		}
		fmt.Fprintf(stderr, "%s %s\n", t.id, t.title)
		section, judged, err := measure(lab, t)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", t.id, err), lab.close())
		}
		report.add(t, section, judged)
		section.write(stderr)
	}
	if err := lab.close(); err != nil {
		return err
	}
	return report.finish(*results, gates, stderr)
}

// once measures a target that gates nothing.
func once(l *lab, t target) (s section, judged bool, err error) {
	s, err = t.measure(l)
	return s, true, err
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func contains(all []string, one string) bool {
	for _, a := range all {
		if strings.EqualFold(a, one) {
			return true
		}
	}
	return false
}
