package require_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/exeat/exeat/e2e/require"
)

func TestASkipIsListed(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skips")
	t.Setenv("CI", "")
	t.Setenv("EXEAT_CI", "")
	t.Setenv("EXEAT_SKIPS", list)
	for _, why := range []string{"no kernel", "no luck"} {
		if r := record(t, func(tb testing.TB) { require.Skip(tb, why) }); !r.skipped || r.failed {
			t.Errorf("%s: skipped %v, failed %v; want a skip", why, r.skipped, r.failed)
		}
	}
	data, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	want := t.Name() + ": no kernel\n" + t.Name() + ": no luck\n"
	if string(data) != want {
		t.Errorf("list %q, want %q", data, want)
	}
}

func TestASkipUnderCIIsAFailure(t *testing.T) {
	for _, variable := range []string{"CI", "EXEAT_CI"} {
		t.Setenv("CI", "")
		t.Setenv("EXEAT_CI", "")
		t.Setenv(variable, "true")
		r := record(t, func(tb testing.TB) { require.Tool(tb, "no-such-tool-of-exeat") })
		if r.skipped || !r.failed || !strings.Contains(r.message, "no-such-tool-of-exeat") {
			t.Errorf("%s=true: %+v, want a failure that names the tool", variable, r)
		}
	}
}

func TestAToolIsFound(t *testing.T) {
	if path := require.Tool(t, "go"); !filepath.IsAbs(path) {
		t.Errorf("path %q, want an absolute one", path)
	}
}

// recorder is a testing.TB that notes how a test ended.
type recorder struct {
	testing.TB
	skipped, failed bool
	message         string
}

// record runs f as a test of its own and waits for its end.
func record(t *testing.T, f func(testing.TB)) *recorder {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

func (r *recorder) Skip(...any) { r.skipped = true; runtime.Goexit() }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = true
	for _, arg := range args {
		if text, ok := arg.(string); ok {
			r.message += text
		}
	}
	runtime.Goexit()
}
