//go:build linux

package joined

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/lab"
)

// world is the little internet that all tests share; binary is the exeatd under
// test, scratch a directory for files.
var (
	world           *internet.World
	binary, scratch string
)

func TestMain(m *testing.M) {
	os.Exit(lab.Main{Name: "e2e/joined", Build: []string{"../../cmd/exeatd"}, Inside: inside}.Run(m))
}

func inside(dir string, w *internet.World, run func() int) int {
	world, scratch, binary = w, dir, filepath.Join(dir, "exeatd")
	return run()
}
