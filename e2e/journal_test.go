//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/e2e/lab"
)

// journal is the log that a sandbox wrote to a file.
type journal struct{ path string }

// logged makes the sandbox write its log to a file.
func (s sandbox) logged(t *testing.T) (sandbox, journal) {
	t.Helper()
	j := journal{filepath.Join(directoryOf(t, s.user), "log.jsonl")}
	s.flags = append(append([]string(nil), s.flags...), "--log", j.path)
	return s, j
}

// directoryOf makes an empty directory that belongs to a user.
func directoryOf(t *testing.T, u user) string {
	t.Helper()
	lab.NeedWorld(t)
	dir, err := os.MkdirTemp(scratch, "dir-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if c := u.attr.Credential; c != nil {
		if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// events reads the log: every line of it must be an event.
func (j journal) events(t *testing.T) []audit.Event {
	t.Helper()
	data, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	return readEvents(t, data)
}

func readEvents(t *testing.T, data []byte) []audit.Event {
	t.Helper()
	var events []audit.Event
	for line := range bytes.Lines(data) {
		var e audit.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		events = append(events, e)
	}
	return events
}

// decision writes an event as the tests compare it: verdict, reason, channel,
// target, and the rule in brackets.
func decision(e audit.Event) string {
	text := fmt.Sprintf("%s %s %s %s", e.Verdict, e.Reason, e.Channel, e.Target())
	if e.Rule != "" {
		text += " (" + e.Rule + ")"
	}
	return text
}

// decisions are the log's, each once.
func (j journal) decisions(t *testing.T) []string {
	t.Helper()
	return decisionsOf(j.events(t))
}

func decisionsOf(events []audit.Event) []string {
	var all []string
	seen := map[string]bool{}
	for _, e := range events {
		if text := decision(e); e.Kind == audit.KindDecision && !seen[text] {
			seen[text] = true
			all = append(all, text)
		}
	}
	return all
}

// want fails the test unless each line is the beginning of a decision of the log.
func (j journal) want(t *testing.T, lines ...string) {
	t.Helper()
	wantDecisions(t, j.decisions(t), lines...)
}

// wantOnly fails the test unless, besides, every denial of the log begins with
// one of the lines.
func (j journal) wantOnly(t *testing.T, lines ...string) {
	t.Helper()
	all := j.decisions(t)
	wantDecisions(t, all, lines...)
	for _, d := range all {
		if strings.HasPrefix(d, "deny") && !beginsWithOne(d, lines) {
			t.Errorf("besides there was %q, want %q only", d, lines)
		}
	}
}

func wantDecisions(t *testing.T, all []string, lines ...string) {
	t.Helper()
	for _, want := range lines {
		found := false
		for _, d := range all {
			found = found || strings.HasPrefix(d+" ", want+" ")
		}
		if !found {
			t.Errorf("no decision %q; there were:\n  %s", want, strings.Join(all, "\n  "))
		}
	}
}

func beginsWithOne(d string, lines []string) bool {
	for _, l := range lines {
		if strings.HasPrefix(d+" ", l+" ") {
			return true
		}
	}
	return false
}

// sum adds up what the events stand for that match.
func sum(events []audit.Event, match func(audit.Event) bool) (n uint64) {
	for _, e := range events {
		if match(e) {
			n += max(e.Folded, 1)
		}
	}
	return n
}
