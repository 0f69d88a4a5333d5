//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// slack is how far a gated ratio may be missed in a quick run.
const slack = 1.15

// target is one row of the targets, with what measures it.
type target struct {
	id, title string
	measure   func(l *lab) (section, error)
}

// section is what was found for one target.
type section struct {
	columns  []string
	rows     [][]string
	verdicts []verdict
	notes    []string
}

// verdict compares a figure with its limit.
type verdict struct {
	what       string
	got, limit float64
	atLeast    bool
	// ratio says that it compares figures of this run, so that it holds on any
	// machine: only these gate.
	ratio bool
}

func (v verdict) met() bool {
	if v.atLeast {
		return v.got >= v.limit
	}
	return v.got <= v.limit
}

// missed says that a gate is missed beyond the slack.
func (v verdict) missed() bool {
	if v.atLeast {
		return v.ratio && v.got*slack < v.limit
	}
	return v.ratio && v.got > v.limit*slack
}

func (v verdict) String() string {
	word, sign := "**missed**", "≤"
	if v.met() {
		word = "met"
	}
	if v.atLeast {
		sign = "≥"
	}
	text := fmt.Sprintf("%s: %s: %.3g (%s %.3g)", word, v.what, v.got, sign, v.limit)
	if !v.met() && v.limit != 0 {
		text += fmt.Sprintf(", by %.0f %%", 100*math.Abs(v.got-v.limit)/v.limit)
	}
	return text
}

// write prints the section as Markdown.
func (s section) write(w io.Writer) {
	var text strings.Builder
	if len(s.rows) > 0 {
		fmt.Fprintf(&text, "| %s |\n|%s\n", strings.Join(s.columns, " | "), strings.Repeat("---|", len(s.columns)))
		for _, row := range s.rows {
			fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
		}
		text.WriteString("\n")
	}
	for _, v := range s.verdicts {
		fmt.Fprintf(&text, "- %s\n", v)
	}
	for _, n := range s.notes {
		fmt.Fprintf(&text, "- %s\n", n)
	}
	fmt.Fprintln(w, text.String())
}

// report is RESULTS.md in the making.
type report struct {
	body bytes.Buffer
	// tried is what bench/notes.md says about each target.
	tried map[string]string
	// short are the targets and stretches that are missed, whether they gate or not;
	// missed are those that gate, and unjudged those of a machine that others used.
	short, missed, unjudged []string
	began                   time.Time
}

// notesOf reads notes.md: what was tried for each target, below a heading that is
// the target's id.
func notesOf(text string) map[string]string {
	notes := map[string]string{}
	for _, part := range strings.Split("\n"+text, "\n## ")[1:] {
		id, note, _ := strings.Cut(part, "\n")
		notes[strings.TrimSpace(id)] = strings.TrimSpace(note)
	}
	return notes
}

func newReport(l *lab, notes string) *report {
	r := &report{tried: notesOf(notes), began: time.Now()}
	fmt.Fprintf(&r.body, `# Results

Written by `+"`make bench`"+` on %s; do not edit. Each figure is the median of %d
interleaved rounds, with the quartiles in brackets. Processor time is that of the
process named (with its children), from /proc/PID/stat; "all" adds client and origin.

%s%s

| peer | version |
|---|---|
`, time.Now().UTC().Format("2006-01-02"), l.size.rounds, machine(), quickNote(l.size))
	for _, p := range l.peers {
		fmt.Fprintf(&r.body, "| %s | %s |\n", p.name, p.version)
	}
	return r
}

// quickNote says so where little was measured.
func quickNote(s size) string {
	if s.bulkBytes == short.bulkBytes {
		return "\n\n**A quick run**, of less at a time: judge by its ratios."
	}
	return ""
}

// machine says what this was measured on.
func machine() string {
	var name unix.Utsname
	kernel := "unknown kernel"
	if err := unix.Uname(&name); err == nil {
		kernel = unix.ByteSliceToString(name.Release[:])
	}
	processor := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				processor = strings.TrimSpace(value)
			}
		}
	}
	commit := "unknown commit"
	if out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("unknown ")
	}
	return fmt.Sprintf("Machine: %d × %s, Linux %s, %s, commit %s; congestion control %s; proxies run as uid %d with %d descriptors; load %s before the run (other work on the machine spoils p99 and rates).",
		runtime.NumCPU(), processor, kernel, runtime.Version(), commit, tcpControl, peerUID, descriptors, strings.Fields(string(load))[0])
}

// add writes a target's section; where something is missed, with what was tried.
// judged false is that others used the machine meanwhile.
func (r *report) add(t target, s section, judged bool) {
	fmt.Fprintf(&r.body, "\n## %s: %s\n\n", t.id, t.title)
	s.write(&r.body)
	short := false
	for _, v := range s.verdicts {
		if !v.met() {
			short = true
			r.short = append(r.short, fmt.Sprintf("%s: %s", t.id, strings.TrimPrefix(v.String(), "**missed**: ")))
		}
	}
	if tried := r.tried[t.id]; short && tried != "" {
		fmt.Fprintf(&r.body, "What was tried: %s\n\n", tried)
	}
	for _, v := range s.gatesMissed() {
		line := fmt.Sprintf("%s: %s", t.id, v)
		if judged {
			r.missed = append(r.missed, line)
		} else {
			r.unjudged = append(r.unjudged, line)
		}
	}
}

// finish writes the results ("-" writes none); where there is a gate, a missed
// ratio is an error, and so is a run that took too long on a machine of its own.
func (r *report) finish(path string, g *gate, stderr io.Writer) error {
	took := time.Since(r.began).Round(time.Second)
	fmt.Fprintf(&r.body, "\n## Missed\n\n")
	for _, line := range r.short {
		fmt.Fprintf(&r.body, "- %s\n", line)
	}
	if len(r.short) == 0 {
		fmt.Fprintln(&r.body, "Nothing.")
	}
	fmt.Fprintf(&r.body, "\nThe run took %v.\n", took)
	if path != "-" {
		if err := os.WriteFile(path, append(bytes.TrimRight(r.body.Bytes(), "\n"), '\n'), 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(stderr, "the run took %v\n", took)
	if g == nil {
		return nil
	}
	for _, line := range r.unjudged {
		fmt.Fprintf(stderr, "not judged, since others used the machine: %s\n", line)
	}
	var err error
	if len(r.missed) > 0 {
		err = fmt.Errorf("ratios missed by more than 15 %% in %d tries:\n%s", gateTries, strings.Join(r.missed, "\n"))
	}
	if took > quickLimit && !g.busy {
		err = errors.Join(err, fmt.Errorf("a quick run is to end within %v, and took %v", quickLimit, took))
	}
	return err
}
