//go:build linux

package torture

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tableEnv names the file that the figures are written to, as tables for
// docs/torture.md.
const tableEnv = "EXEAT_TORTURE_TABLE"

// table has the figures of a run.
type table struct {
	mu   sync.Mutex
	rows []string
}

// figures are the run's.
var figures table

// report logs a line of figures, which goes into the table too.
func report(t testing.TB, what, shape, format string, args ...any) {
	t.Helper()
	found := fmt.Sprintf(format, args...)
	t.Logf("LIMITS %s, %s: %s", what, shape, found)
	figures.mu.Lock()
	defer figures.mu.Unlock()
	figures.rows = append(figures.rows, fmt.Sprintf("| %s | %s | %s |", what, shape, strings.ReplaceAll(found, "|", "/")))
}

// progress logs how far a test is, every so often.
type progress struct {
	began, last time.Time
}

func (p *progress) say(t testing.TB, format string, args ...any) {
	t.Helper()
	now := time.Now()
	if p.began.IsZero() {
		p.began, p.last = now, now
	}
	if now.Sub(p.last) > 20*time.Second {
		p.last = now
		t.Logf("after %s: %s", now.Sub(p.began).Round(time.Second), fmt.Sprintf(format, args...))
	}
}

// head is the commit that the tree is of now: at the end of a long run it may be
// another.
func head() string {
	commit, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(commit))
}

// write puts the table of the run, which began then with that commit, into the file
// that tableEnv names.
func (f *table) write(began time.Time, commit string, status int) error {
	path := os.Getenv(tableEnv)
	if path == "" || len(f.rows) == 0 {
		return nil
	}
	var limit unix.Rlimit
	var name unix.Utsname
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if err := unix.Uname(&name); err != nil {
		return err
	}
	outcome := "every test passed"
	if status != 0 {
		outcome = "**a test failed**"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "`%s=%s %s`\n\n", tortureEnv, os.Getenv(tortureEnv), command())
	fmt.Fprintf(&text, "%s, commit %s, %d processors, Linux %s, %d descriptors a process, %s, %s\n\n",
		began.UTC().Format("2006-01-02 15:04"), commit, runtime.NumCPU(), unix.ByteSliceToString(name.Release[:]), limit.Cur,
		time.Since(began).Round(time.Second), outcome)
	text.WriteString("| what | shape | figures |\n|---|---|---|\n" + strings.Join(f.rows, "\n") + "\n\n")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(text.String())
	return err
}

// command is how these tests were chosen.
func command() string {
	words := []string{"go test -count=1 -v"}
	for _, arg := range os.Args[1:] {
		if only, ok := strings.CutPrefix(arg, "-test.run="); ok {
			words = append(words, "-run '"+only+"'")
		}
	}
	return strings.Join(append(words, "./e2e/torture"), " ")
}
