//go:build linux

package sealed

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/require"
)

// TestNothingRunsBeforeItIsReleased is bypass B41: the command waits until whoever
// started the sandbox serves it.
func TestNothingRunsBeforeItIsReleased(t *testing.T) {
	require.UserNamespaces(t)
	ran := filepath.Join(t.TempDir(), "ran")
	s, err := Start(t.Context(), shell("echo ran >"+ran))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	time.Sleep(300 * time.Millisecond) // it would have run
	if _, err := os.Stat(ran); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it ran before it was released: %v", err)
	}
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if status, err := s.Wait(); status != 0 || err != nil {
		t.Fatalf("status %d, %v", status, err)
	}
	if _, err := os.Stat(ran); err != nil {
		t.Errorf("it did not run once it was released: %v", err)
	}
}
