//go:build !image

package cli

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the goldens of testdata/script anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"exeat": Main})
}

// TestScripts runs the command lines of testdata/script.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// TestBuildsForMacOS: people check policies and steer remote sandboxes from there.
func TestBuildsForMacOS(t *testing.T) {
	for _, platform := range []string{"darwin/amd64", "darwin/arm64"} {
		t.Run(platform, func(t *testing.T) {
			goos, goarch, _ := strings.Cut(platform, "/")
			build(t, "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
		})
	}
}

// build makes the real binary and gives its path.
func build(t *testing.T, env ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "exeat")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "..")
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// result is how a run of the binary ended.
type result struct {
	stdout, stderr string
	status         int
}

// execute runs the binary with input on its standard input.
func execute(t *testing.T, path, input string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %q: %v", path, args, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}
