package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReadSaysWhatTheRingNoLongerHas(t *testing.T) {
	l := newLog(t, Config{RingSize: 4})
	for i := range 10 {
		l.Record(denied(fmt.Sprintf("n%d.test", i)))
	}
	tests := map[string]struct {
		after       uint64
		first, lost uint64
		n           int
	}{
		"from the beginning is from what there is": {0, 7, 0, 4},
		"what is gone is counted":                  {3, 7, 3, 4},
		"just before the oldest":                   {6, 7, 0, 4},
		"the newest":                               {9, 10, 0, 1},
		"nothing more":                             {10, 0, 0, 0},
		"an ID of another start":                   {4711, 7, 0, 4},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			buf := make([]Event, 8)
			n, lost := l.Read(tt.after, buf)
			if n != tt.n || lost != tt.lost || n > 0 && buf[0].ID != tt.first {
				t.Errorf("read %d from %d, lost %d: want %+v", n, buf[0].ID, lost, tt)
			}
		})
	}
}

func TestASlowReaderLosesAndNeverBlocks(t *testing.T) {
	l := newLog(t, Config{RingSize: 16})
	sub := l.Subscribe(0, 1)
	defer sub.Close()
	for i := range 1000 { // would hang here if it blocked
		l.Record(denied(fmt.Sprintf("n%d.test", i)))
	}
	var got, gaps, last uint64
	for last < 1000 {
		e := <-sub.C()
		gaps += e.ID - last - 1
		last = e.ID
		got++
	}
	if got+gaps != 1000 || gaps == 0 {
		t.Errorf("got %d, missed %d of 1000", got, gaps)
	}
	if lost := sub.Lost(); lost != gaps {
		t.Errorf("told of %d lost, %d are missing", lost, gaps)
	}
}

func TestSubscriptionEndsWithTheLog(t *testing.T) {
	l := New(Config{})
	l.Record(denied("a.test"))
	l.Record(denied("a.test"))
	sub := l.Subscribe(0, 0)
	defer sub.Close()
	closeLog(t, l)
	var got []uint64
	for e := range sub.C() {
		got = append(got, e.Folded)
	}
	if len(got) != 2 || got[1] != 1 {
		t.Errorf("got folds %v, want the event and its fold before the end", got)
	}
}

// stuck is a writer that blocks until it is let go.
type stuck struct{ gate chan struct{} }

func (s stuck) Write(p []byte) (int, error) {
	<-s.gate
	return len(p), nil
}

func TestAStuckWriterDelaysNoDecision(t *testing.T) {
	w := stuck{make(chan struct{})}
	l := New(Config{Writer: w, RingSize: 8})
	for i := range 100 {
		l.Record(denied(fmt.Sprintf("n%d.test", i)))
	}
	close(w.gate)
	closeLog(t, l)
	if stats := l.Stats(); stats.Unwritten == 0 || stats.Unwritten > 92 {
		t.Errorf("%d unwritten of 100 with a ring of 8", stats.Unwritten)
	}
}

// failing fails the first n writes.
type failing struct {
	n   int
	out *syncBuffer
}

func (f *failing) Write(p []byte) (int, error) {
	if f.n > 0 {
		f.n--
		return 0, unix.ENOSPC
	}
	return f.out.Write(p)
}

func TestAFailingWriterIsToldAndTriedAgain(t *testing.T) {
	w := &failing{n: 2, out: &syncBuffer{}}
	l := New(Config{Writer: w})
	l.Record(denied("a.test"))
	l.Record(denied("b.test"))
	eventually(t, func() bool { return errors.Is(l.Health(), unix.ENOSPC) })
	l.Record(denied("c.test"))
	closeLog(t, l)
	if lines := w.out.lines(t); len(lines) != 1 || lines[0].Name != "c.test" {
		t.Errorf("lines %+v, want c.test", lines)
	}
	if err := l.Health(); err != nil {
		t.Errorf("health after a good write: %v", err)
	}
	if got := l.Stats().Unwritten; got != 2 {
		t.Errorf("%d unwritten, want 2", got)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("did not come true in 5 s")
		}
	}
}

func TestFileIsSetAsideWhenFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exeat.log")
	f, err := OpenFile(path, 10, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"11111\n", "22222\n", "33333\n", "44444\n", "5\n"} {
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{path: "44444\n5\n", path + ".1": "33333\n", path + ".2": "22222\n"}
	for name, content := range want {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != content {
			t.Errorf("%s holds %q, want %q", filepath.Base(name), got, content)
		}
	}
	if _, err := os.Stat(path + ".3"); !os.IsNotExist(err) {
		t.Errorf("a third old file: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: want 0600", info.Mode(), err)
	}
}

func TestFileGoesOnWhereItLeftOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exeat.log")
	for range 2 {
		f, err := OpenFile(path, 100, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("line\n")); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || strings.Count(string(got), "line\n") != 2 {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAFileThatCannotBeSetAsideIsWrittenOn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "exeat.log")
	f, err := OpenFile(path, 4, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path+".1", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("1111\n")); err != nil {
		t.Fatal(err)
	}
	n, err := f.Write([]byte("2222\n"))
	if n != 5 || err == nil {
		t.Errorf("wrote %d, %v: want the line written and the reason", n, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "1111\n2222\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAPipeIsNeverSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := OpenFile(path, 4, 1)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := f.Write([]byte("12345\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + ".1"); !os.IsNotExist(err) {
		t.Errorf("the pipe was set aside: %v", err)
	}
}
