//go:build linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/lab"
)

// runTimeout bounds every command of a test.
const runTimeout = 2 * time.Minute

// result is what a command printed and how it ended.
type result struct {
	stdout, stderr string
	status         int
	took           time.Duration
}

// want fails the test unless the command ended with status and printed the words.
func (r result) want(t *testing.T, status int, words ...string) {
	t.Helper()
	if r.status != status {
		t.Errorf("status %d, want %d\nstdout: %s\nstderr: %s", r.status, status, r.stdout, r.stderr)
	}
	for _, w := range words {
		if !strings.Contains(r.stdout+r.stderr, w) {
			t.Errorf("output has no %q\nstdout: %s\nstderr: %s", w, r.stdout, r.stderr)
		}
	}
}

// sandbox is how a test starts `exeat run`.
type sandbox struct {
	user  user
	flags []string
	stdin io.Reader
	dir   string
	env   []string
}

// guarded starts sandboxes as the first user, with the world's resolver.
func guarded(flags ...string) sandbox { return sandbox{user: users()[0], flags: flags} }

// as starts them as another user.
func (s sandbox) as(u user) sandbox {
	s.user = u
	return s
}

// with feeds the command's standard input.
func (s sandbox) with(stdin io.Reader) sandbox {
	s.stdin = stdin
	return s
}

// command makes the command line, not yet started.
func (s sandbox) command(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	lab.NeedWorld(t)
	line := []string{"run", "--resolver", "203.0.113.53"}
	line = append(append(line, s.flags...), "--")
	cmd := exec.CommandContext(ctx, binary, append(line, args...)...)
	cmd.Env = append(os.Environ(),
		"XDG_RUNTIME_DIR="+runtimeDirOf(t, s.user), "HOME="+scratch,
		"SSL_CERT_FILE="+world.CAFile(), "CURL_CA_BUNDLE="+world.CAFile(), "GIT_SSL_CAINFO="+world.CAFile(),
		"REQUESTS_CA_BUNDLE="+world.CAFile(),
	)
	if s.user.attr.Credential != nil { // root's PATH may name what others may not enter
		cmd.Env = append(cmd.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	cmd.Env = append(cmd.Env, s.env...)
	attr := *s.user.attr
	cmd.SysProcAttr = &attr
	cmd.Stdin = s.stdin
	cmd.Dir = scratch
	if s.dir != "" {
		cmd.Dir = s.dir
	}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs a command in a sandbox of its own.
func (s sandbox) run(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	return outcome(t, s.command(ctx, t, args...))
}

// sh runs a line of shell in a sandbox of its own.
func (s sandbox) sh(t *testing.T, line string) result {
	t.Helper()
	return s.run(t, "sh", "-c", line)
}

// outcome runs cmd to its end.
func outcome(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	r := result{stdout: stdout.String(), stderr: stderr.String(), took: time.Since(began)}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		r.status = exit.ExitCode()
	default:
		t.Fatalf("%v: %v\nstderr: %s", cmd.Args, err, r.stderr)
	}
	return r
}

// exeat runs another command of the binary as the first user.
func exeat(t *testing.T, args ...string) result {
	t.Helper()
	lab.NeedWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDirOf(t, users()[0]))
	return outcome(t, cmd)
}

// runtimeDirOf gives a user's $XDG_RUNTIME_DIR: one for the whole run.
func runtimeDirOf(t *testing.T, u user) string {
	t.Helper()
	dir := filepath.Join(scratch, "runtime "+u.name)
	err := os.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if c := u.attr.Credential; c != nil && err == nil {
		if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
