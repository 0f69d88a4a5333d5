//go:build linux

package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/require"
)

const (
	scratchEnv = "EXEAT_CONTAINERS_SCRATCH"
	missingEnv = "EXEAT_CONTAINERS_MISSING"
)

// rootfsFile is the cached Debian; another name wherever scripts/debian-rootfs puts
// something else into it.
const rootfsFile = "debian-bookworm-2.tar"

// scratch is a directory of the test run, world the little internet that every
// container reaches through its engine's bridge.
var (
	scratch string
	world   *internet.World
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain makes what takes a network outside, and runs the tests in namespaces
// inside, where the engines are started: what they leave dies with these.
func testMain(m *testing.M) int {
	if os.Getenv(missingEnv) != "" {
		return m.Run() // each test skips
	}
	if scratch = os.Getenv(scratchEnv); scratch == "" {
		return outside(m)
	}
	if err := errors.Join(inside(), repository()); err != nil {
		return complain(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var err error
	if world, err = internet.Start(ctx, internet.Standard(), scratch); err != nil {
		return complain(fmt.Errorf("start the little internet: %w", err))
	}
	status := m.Run()
	stopEngines()
	if err := world.Close(); err != nil {
		return complain(err)
	}
	return status
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "e2e/containers:", err)
	return 1
}

// outside builds the programs and the Debian, and becomes the tests' parent.
func outside(m *testing.M) int {
	if why := missing(); why != "" {
		if err := os.Setenv(missingEnv, why); err != nil {
			return complain(err)
		}
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "exeat-containers-")
	if err != nil {
		return complain(err)
	}
	defer os.RemoveAll(dir)
	if err := prepare(dir); err != nil {
		return complain(err)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), scratchEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	runtime.LockOSThread() // the parent-death signal follows the thread (prctl(2))
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return complain(err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go thawAfter(cmd.Process.Pid, filepath.Base(dir), ended)
	err = cmd.Wait()
	defer removeGroups(filepath.Base(dir))
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		return complain(err)
	}
	return 0
}

// missing says what the tests need and the machine has not.
func missing() string {
	if os.Geteuid() != 0 {
		return "container engines are started as root"
	}
	for _, tool := range []string{"dockerd", "docker", "podman", "debootstrap", "iptables", "git"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is not installed (scripts/install-test-tools)"
		}
	}
	return ""
}

// prepare makes everything that needs the machine's own network or Go's caches.
func prepare(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	compose := exec.Command("go", "build", "-o", dir+"/docker-compose", "github.com/docker/compose/v2/cmd")
	compose.Dir = "../../tools/compose"
	var steps errgroup.Group
	for _, step := range []*exec.Cmd{
		exec.Command("../../scripts/debian-rootfs", filepath.Join(cache, "exeat-test", rootfsFile)),
		exec.Command("go", "build", "-trimpath", "-o", dir+"/exeat", "../../cmd/exeat"),
		exec.Command("go", "build", "-trimpath", "-o", dir+"/agent", "../agent"),
		compose,
	} {
		step.Env = os.Environ()
		if step != compose {
			step.Env = append(step.Env, "CGO_ENABLED=0")
		}
		step.Stderr = os.Stderr
		steps.Go(func() error {
			if err := step.Run(); err != nil {
				return fmt.Errorf("%v: %w", step.Args, err)
			}
			return nil
		})
	}
	if err := steps.Wait(); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(cache, "exeat-test", rootfsFile), filepath.Join(dir, "debian.tar"))
}

// inside makes the namespaces ready for engines and the little internet.
func inside() error {
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, file := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile(file, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(resolve(), internet.SetUp())
}

// resolve has the engines, and what they start, resolve by the little internet.
func resolve() error {
	own := filepath.Join(scratch, "resolv.conf")
	if err := os.WriteFile(own, []byte("nameserver "+internet.Resolver.Addr().String()+"\n"), 0o644); err != nil {
		return err
	}
	file := "/etc/resolv.conf"
	// systemd-resolved's is in /run, which is ours by now, and empty.
	if to, err := os.Readlink(file); err == nil {
		if file = to; !filepath.IsAbs(to) {
			file = filepath.Join("/etc", to)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), touch(file)); err != nil {
			return err
		}
	}
	return os.NewSyscallError("mount "+file, unix.Mount(own, file, "", unix.MS_BIND, ""))
}

// touch makes a file that is not there.
func touch(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// repository makes what git.test serves.
func repository() error {
	work := filepath.Join(scratch, "work")
	for _, line := range [][]string{
		{"init", "-q", "-b", "main", work},
		{"-C", work, "-c", "user.name=a", "-c", "user.email=a@a.test", "commit", "-q", "--allow-empty", "-m", "the first"},
		{"clone", "-q", "--bare", work, filepath.Join(scratch, "git", "project.git")},
	} {
		if out, err := exec.Command("git", line...).CombinedOutput(); err != nil {
			return fmt.Errorf("git %v: %w: %s", line, err, out)
		}
	}
	return nil
}

// thawAfter lets what a container was paused with die, should the tests have ended in
// the middle of that: version 1 of control groups keeps it, and with it the PID
// namespace, and so whoever waits for that.
func thawAfter(pid int, name string, ended <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || !strings.Contains(string(status), "State:\tZ") {
			continue
		}
		states, err := filepath.Glob("/sys/fs/cgroup/freezer/" + name + "/*/freezer.state")
		for _, state := range states {
			err = errors.Join(err, os.WriteFile(state, []byte("THAWED"), 0))
		}
		if err != nil {
			complain(fmt.Errorf("thaw what was paused: %w", err))
			return
		}
	}
}

// removeGroups removes the control groups that the engines left.
func removeGroups(name string) {
	paths, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return
	}
	for _, top := range append(paths, "/sys/fs/cgroup/"+name) { // of version 1, and of version 2
		var dirs []string
		err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; err == nil && i >= 0; i-- {
			err = os.Remove(dirs[i])
		}
	}
}

// need skips where no engine can be had.
func need(t *testing.T) {
	t.Helper()
	if why := os.Getenv(missingEnv); why != "" {
		require.Skip(t, why)
	}
}

// serial numbers the names of containers.
func serial() string { return strconv.Itoa(int(names.Add(1))) }
