//go:build linux

package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// debian is the sandbox's image, of either engine.
const debian = "localhost/exeat-test/sandbox"

// usualSocket is where people's Docker has its socket; ours is in a /run of its own.
const usualSocket = "/run/docker.sock"

// names numbers what must be unique.
var names atomic.Uint32

// engine is a container engine that the tests have started.
type engine struct {
	name  string
	env   []string
	start sync.Once
	err   error
	// daemon is dockerd; Podman has none.
	daemon *exec.Cmd
}

var docker, podman = &engine{name: "docker"}, &engine{name: "podman"}

// each runs a test with both engines, side by side: they share nothing but the
// little internet, and where a test looks at what reached that, it looks for what it
// sent itself. It is the last thing that a test does.
func each(t *testing.T, test func(*testing.T, *engine)) {
	for _, e := range []*engine{docker, podman} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			e.need(t)
			test(t, e)
		})
	}
}

// need starts the engine and makes its images, once.
func (e *engine) need(t *testing.T) {
	t.Helper()
	need(t)
	e.start.Do(func() {
		if e.err = e.launch(); e.err == nil {
			e.err = e.images()
		}
	})
	if e.err != nil {
		t.Fatalf("%s can't be used: %v", e.name, e.err)
	}
}

func (e *engine) launch() error {
	bin := filepath.Join(scratch, "bin") // what is there comes first
	e.env = append(os.Environ(), "EXEAT_ENGINE="+e.name, "PATH="+bin+":"+os.Getenv("PATH"))
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	if e.name == "docker" {
		e.env = append(e.env, "DOCKER_HOST=unix://"+e.file("sock"), "DOCKER_CONFIG="+e.file("config"))
		return e.launchDaemon()
	}
	e.env = append(e.env, "CONTAINERS_CONF="+e.file("containers.conf"))
	path, err := exec.LookPath("podman")
	if err != nil {
		return err
	}
	conf := `[containers]
default_ulimits=["nofile=1024:4096","nproc=4096:4096"]
cgroupns="host"
[engine]
cgroup_manager="cgroupfs"
runtime="runc"
events_logger="file"
`
	wrapper := fmt.Sprintf("#!/bin/sh\nexec %[2]s --root %[1]s/root --runroot %[1]s/run --tmpdir %[1]s/tmp \"$@\"\n", e.file(""), path)
	return errors.Join(
		os.MkdirAll(e.file(""), 0o755),
		os.WriteFile(e.file("containers.conf"), []byte(conf), 0o644),
		os.WriteFile(filepath.Join(bin, "podman"), []byte(wrapper), 0o755),
	)
}

// launchDaemon starts dockerd and waits until it answers.
func (e *engine) launchDaemon() error {
	if err := os.MkdirAll(e.file(""), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(e.file("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	e.daemon = exec.Command("dockerd", "--data-root", e.file("data"), "--exec-root", e.file("exec"), "--pidfile", e.file("pid"),
		"--host", "unix://"+e.file("sock"), "--host", "unix://"+usualSocket, "--cgroup-parent", "/"+filepath.Base(scratch),
		"--ipv6", "--fixed-cidr-v6", "2001:db8:1::/64")
	e.daemon.Stdout, e.daemon.Stderr = log, log
	e.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.daemon.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		r := e.try("ps", "-q")
		if r.status == 0 {
			return nil
		}
		if strings.Contains(r.stderr, "API version") {
			return e.ownClient(r)
		}
		if time.Now().After(deadline) {
			tail, err := os.ReadFile(e.file("log"))
			return errors.Join(fmt.Errorf("dockerd does not answer: %s\n%s", r.stderr, tail[max(0, len(tail)-2000):]), err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ownClient takes the command line of dockerd's own package where the first of PATH
// is too new for it, and said so.
func (e *engine) ownClient(said result) error {
	own := filepath.Join(scratch, "bin", "docker")
	if err := os.Symlink("/usr/bin/docker", own); err != nil {
		return fmt.Errorf("%s: %w", said.stderr, err)
	}
	if r := e.try("ps", "-q"); r.status != 0 {
		return fmt.Errorf("neither docker command speaks to this dockerd: %s%s", said.stderr, r.stderr)
	}
	return nil
}

// images makes the sidecar's and the sandbox's images.
func (e *engine) images() error {
	if r := e.outcome(exec.Command("../../scripts/image")); r.status != 0 {
		return fmt.Errorf("scripts/image: %s", r.stderr)
	}
	if r := e.try("import", filepath.Join(scratch, "debian.tar"), "localhost/exeat-test/debian"); r.status != 0 {
		return fmt.Errorf("import: %s", r.stderr)
	}
	dir := e.file("context")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for from, to := range map[string]string{world.CAFile(): "ca.pem", scratch + "/agent": "agent"} {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, to), data, 0o755); err != nil {
			return err
		}
	}
	dockerfile := `FROM localhost/exeat-test/debian
COPY ca.pem /ca.pem
COPY agent /usr/bin/agent
ENV SSL_CERT_FILE=/ca.pem CURL_CA_BUNDLE=/ca.pem GIT_SSL_CAINFO=/ca.pem
`
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		return err
	}
	cmd := e.program(context.Background(), e.name, "build", "--quiet", "--tag", debian, dir)
	cmd.Env = append(cmd.Env, "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the sandbox's image: %w: %s", err, out)
	}
	return nil
}

// stopEngines ends what was started.
func stopEngines() {
	for _, e := range []*engine{docker, podman} {
		if e.env == nil {
			continue
		}
		if ids := strings.Fields(e.try("ps", "--all", "--quiet").stdout); len(ids) > 0 {
			e.remove(ids...)
		}
		e.stopDaemon(syscall.SIGTERM)
	}
}

func (e *engine) stopDaemon(s syscall.Signal) {
	if e.daemon == nil {
		return
	}
	err := errors.Join(e.daemon.Process.Signal(s), e.daemon.Wait())
	if err != nil && s == syscall.SIGTERM {
		fmt.Fprintln(os.Stderr, "dockerd:", err)
	}
	e.daemon = nil
}

func (e *engine) file(name string) string { return filepath.Join(scratch, e.name+"-engine", name) }

// result is how a command ended.
type result struct {
	stdout, stderr string
	status         int
}

// commandTimeout bounds every command of the tests.
const commandTimeout = 90 * time.Second

// curlTimeout is curl's status where what it asked for hung: a refusal comes at once,
// and is judged by curl's clock, for the engine's exec takes seconds on a busy machine.
const curlTimeout = 28

// outcome runs a command in the engine's environment.
func (e *engine) outcome(cmd *exec.Cmd) result { return e.begin(cmd)() }

// begin starts a command in the engine's environment; wait gives its outcome.
func (e *engine) begin(cmd *exec.Cmd) (wait func() result) {
	var stdout, stderr bytes.Buffer
	if cmd.Env == nil {
		cmd.Env = e.env
	}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Start()
	return func() result {
		if err == nil {
			err = cmd.Wait()
		}
		return outcomeOf(err, result{stdout: stdout.String(), stderr: stderr.String()})
	}
}

// outcomeOf adds to r how a command ended.
func outcomeOf(err error, r result) result {
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.status = exit.ExitCode()
	case err != nil:
		r.status, r.stderr = -1, r.stderr+err.Error()
	}
	return r
}

// program makes a command in the engine's environment.
func (e *engine) program(ctx context.Context, name string, args ...string) *exec.Cmd {
	if name == "exeat" {
		name = filepath.Join(scratch, "exeat")
	} else if at := filepath.Join(scratch, "bin", name); exists(at) {
		name = at
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = e.env
	cmd.WaitDelay = time.Second
	return cmd
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// try runs the engine's command line.
func (e *engine) try(args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return e.outcome(e.program(ctx, e.name, args...))
}

// remove removes containers and what volumes are their own.
func (e *engine) remove(containers ...string) {
	args := []string{"rm", "--force", "--volumes"}
	if e == podman {
		args = append(args, "--time", "0") // it would wait for `sleep` to heed SIGTERM
	}
	e.try(append(args, containers...)...)
}

// do runs the engine's command line, which must succeed.
func (e *engine) do(t *testing.T, args ...string) string {
	t.Helper()
	r := e.try(args...)
	if r.status != 0 {
		t.Fatalf("%s %q: status %d\n%s", e.name, args, r.status, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// exeat runs the command under test.
func (e *engine) exeat(t *testing.T, args ...string) result {
	t.Helper()
	return e.exeatWith(t, "", args...)
}

// exeatWith does so with something on standard input.
func (e *engine) exeatWith(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := e.program(ctx, "exeat", args...)
	cmd.Stdin = strings.NewReader(stdin)
	return e.outcome(cmd)
}

// want checks a status, and that the output has each of words.
func (r result) want(t *testing.T, status int, words ...string) result {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d\nstdout: %s\nstderr: %s", r.status, status, r.stdout, r.stderr)
	}
	for _, w := range words {
		if !strings.Contains(r.stdout+r.stderr, w) {
			t.Errorf("no %q in\nstdout: %s\nstderr: %s", w, r.stdout, r.stderr)
		}
	}
	return r
}

// name gives a container's name, and removes what bears it, or begins with it, at
// the test's end.
func (e *engine) fresh(t *testing.T) string {
	t.Helper()
	name := "t" + serial()
	t.Cleanup(func() {
		for _, suffix := range []string{"-agent", "-box", "-exeat", ""} {
			if t.Failed() && (suffix == "" || suffix == "-exeat") {
				t.Logf("log of %s: %s", name+suffix, e.try("logs", "--tail", "30", name+suffix).stdout)
			}
			e.remove(name + suffix)
		}
	})
	return name
}

// up starts a sidecar and a sandbox behind it, NAME and NAME-box.
func (e *engine) up(t *testing.T, flags ...string) (name, box string) {
	t.Helper()
	name = e.fresh(t)
	r := e.exeat(t, append([]string{"up", name}, flags...)...)
	r.want(t, 0)
	box = name + "-box"
	args := append([]string{"run", "--detach", "--name", box}, strings.Fields(r.stdout)...)
	e.do(t, append(args, debian, "sleep", "1000")...)
	return name, box
}

// alone starts a container that nobody guards.
func (e *engine) alone(t *testing.T, flags ...string) string {
	t.Helper()
	name := e.fresh(t)
	args := append([]string{"run", "--detach", "--name", name}, flags...)
	e.do(t, append(args, debian, "sleep", "1000")...)
	return name
}

// in runs a command in a container.
func (e *engine) in(container string, command ...string) result {
	return e.try(append([]string{"exec", container}, command...)...)
}

// inWith does so with something on standard input.
func (e *engine) inWith(stdin, container string, command ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := e.program(ctx, e.name, append([]string{"exec", "--interactive", container}, command...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return e.outcome(cmd)
}

// reaches says whether curl gets an answer of 200 in a container.
func (e *engine) reaches(container, url string) bool {
	r := e.in(container, "curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", url)
	return r.status == 0 && r.stdout == "200"
}
