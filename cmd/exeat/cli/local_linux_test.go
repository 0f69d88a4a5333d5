//go:build !image

package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

func TestTheControlDirectoriesOfOtherEnvironmentsAreHiddenToo(t *testing.T) {
	runtime, temporary := t.TempDir(), t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	t.Setenv("TMPDIR", temporary)
	other := filepath.Join(temporary, "exeat-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	dirs := controlDirs()
	for _, want := range []string{filepath.Join(runtime, "exeat"), other} {
		if !slices.Contains(dirs, want) {
			t.Errorf("%s is not among %v", want, dirs)
		}
	}

	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(runtime, other); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(controlDirs(), other) {
		t.Error("somebody's link would hide what it leads to")
	}
}
