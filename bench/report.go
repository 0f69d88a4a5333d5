//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// target is one row of the targets, with what measures it.
type target struct {
	id, title string
	measure   func(l *lab) (section, error)
	// gates says that it has gates, and so is part of a quick run.
	gates bool
}

// section is what was found for one target.
type section struct {
	columns  []string
	rows     [][]string
	verdicts []verdict
	notes    []string
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
	// missed are the targets and stretches that are.
	missed []string
	began  time.Time
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
process named (with its children), by the kernel's clock of it; "all" adds client and
origin. The lab uses %d processors, whatever the machine has.

%s

| peer | version |
|---|---|
`, time.Now().UTC().Format("2006-01-02"), l.size.rounds, labProcessors, machine())
	for _, p := range l.peers {
		fmt.Fprintf(&r.body, "| %s | %s |\n", p.name, p.version)
	}
	return r
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
func (r *report) add(t target, s section) {
	fmt.Fprintf(&r.body, "\n## %s: %s\n\n", t.id, t.title)
	s.write(&r.body)
	short := false
	for _, v := range s.verdicts {
		if v.measured() && !v.met() {
			short = true
			r.missed = append(r.missed, fmt.Sprintf("%s: %s", t.id, strings.TrimPrefix(v.String(), "**missed**: ")))
		}
	}
	if tried := r.tried[t.id]; short && tried != "" {
		fmt.Fprintf(&r.body, "What was tried: %s\n\n", tried)
	}
}

// finish writes the results ("-" writes none).
func (r *report) finish(path string, stderr io.Writer) error {
	took := time.Since(r.began).Round(time.Second)
	fmt.Fprintf(&r.body, "\n## Missed\n\n")
	for _, line := range r.missed {
		fmt.Fprintf(&r.body, "- %s\n", line)
	}
	if len(r.missed) == 0 {
		fmt.Fprintln(&r.body, "Nothing.")
	}
	fmt.Fprintf(&r.body, "\nThe run took %v.\n", took)
	fmt.Fprintf(stderr, "the run took %v\n", took)
	if path == "-" {
		return nil
	}
	return os.WriteFile(path, append(bytes.TrimRight(r.body.Bytes(), "\n"), '\n'), 0o644)
}
