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
	"slices"
	"strings"
	"syscall"
	"time"
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
		return runLab(ctx, args[1:], stderr)
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

// options are those of bench run.
type options struct {
	quick, deaf    bool
	only, peers    []string
	command        string
	notes, results string
	size           size
}

// quickPeers are those that a gate compares us with. They come from Debian, and so a
// quick run needs nothing from the internet but what the tests need.
var quickPeers = []string{"haproxy", "unbound"}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	flags := flag.NewFlagSet("bench run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{size: full}
	flags.BoolVar(&o.quick, "quick", os.Getenv("QUICK") == "1", "measure what has gates, less of it, and fail where one is missed by more than 15 % in every try")
	flags.BoolVar(&o.deaf, "deaf", false, "where quick: count a try however loud the machine was")
	only := flags.String("only", "", "comma-separated targets, e.g. P1,P4")
	peers := flags.String("peers", "", "comma-separated peers, e.g. haproxy; default all that are installed, where quick "+strings.Join(quickPeers, ","))
	flags.StringVar(&o.command, "engine", "", "our side: a command that redirects as it likes is given {port} and {uid} (default: the bench's own engine)")
	rounds := flags.Int("rounds", 0, fmt.Sprintf("how often everything is measured (default %d; %d where quick)", full.rounds, short.rounds))
	flags.StringVar(&o.notes, "notes", "bench/notes.md", "what was tried for the targets that are missed")
	flags.StringVar(&o.results, "o", "bench/RESULTS.md", "where the results are written; - for none, as where quick")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.only, o.peers = list(*only), list(*peers)
	if o.quick {
		o.size, o.results = short, "-"
		if len(o.peers) == 0 {
			o.peers = quickPeers
		}
	}
	if *rounds > 0 {
		o.size.rounds = *rounds
	}
	for _, id := range o.only {
		if !slices.ContainsFunc(targets(), func(t target) bool { return strings.EqualFold(t.id, id) }) {
			return o, fmt.Errorf("there is no target %q", id)
		}
	}
	return o, nil
}

// wanted are the targets that a run measures.
func (o options) wanted() []target {
	var all []target
	for _, t := range targets() {
		if len(o.only) > 0 && !contains(o.only, t.id) || len(o.only) == 0 && o.quick && !t.gates {
			continue
		}
		all = append(all, t)
	}
	return all
}

// runLab measures the targets and writes what it found.
func runLab(ctx context.Context, args []string, stderr io.Writer) error {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	if err := confine(); err != nil {
		return err
	}
	if o.quick {
		return judgeAll(ctx, o, stderr)
	}
	tried, err := os.ReadFile(o.notes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := newLab(ctx, o.size, o.peers, o.command, stderr)
	if err != nil {
		return err
	}
	report := newReport(l, string(tried))
	for _, t := range o.wanted() {
		fmt.Fprintf(stderr, "%s %s\n", t.id, t.title)
		s, err := t.measure(l)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", t.id, err), l.close())
		}
		report.add(t, s)
		s.write(stderr)
	}
	if err := l.close(); err != nil {
		return err
	}
	return report.finish(o.results, stderr)
}

// judgeAll is the quick run.
func judgeAll(ctx context.Context, o options, stderr io.Writer) error {
	timed, cancel := context.WithTimeout(ctx, quickLimit)
	defer cancel()
	j := &judge{log: stderr, deaf: o.deaf, listen: listen, began: time.Now(), open: func() (*lab, error) {
		return newLab(timed, o.size, o.peers, o.command, stderr)
	}}
	for _, t := range o.wanted() {
		fmt.Fprintf(stderr, "%s %s\n", t.id, t.title)
		s, err := j.measure(timed, t)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", t.id, err), j.lab.close())
		}
		s.write(stderr)
	}
	if err := j.lab.close(); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "the run took %v (budget %v)\n", time.Since(j.began).Round(time.Second), quickLimit)
	return j.verdict()
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func contains(all []string, one string) bool {
	return slices.ContainsFunc(all, func(a string) bool { return strings.EqualFold(a, one) })
}
