//go:build linux

package containers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What an engine says of a container is what findings go by: each of these must be
// found in what real engines say.
func TestWhatWouldUndoTheGuardIsFound(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		unmask := "systempaths=unconfined"
		if e.name == "podman" {
			unmask = "unmask=ALL"
		}
		volume, other := e.fresh(t), e.alone(t, "--ipc", "shareable")
		e.do(t, "volume", "create", "--opt", "type=none", "--opt", "o=bind", "--opt", "device=/run", volume)
		t.Cleanup(func() { e.try("volume", "rm", volume) })
		for says, flags := range map[string][]string{
			"may write to /proc/sys":        {"--security-opt", unmask},
			"system calls are not filtered": {"--security-opt", "seccomp=unconfined"},
			"devices that it makes itself":  {"--device-cgroup-rule", "b 7:* rwm"},
			"/run is mounted at /host by":   {"--volume", volume + ":/host"},
			"with others than this sandbox": {"--ipc", "container:" + other},
		} {
			box := e.alone(t, flags...)
			e.exeat(t, "attach", box, "--allow", "pypi.test").want(t, 1, says)
		}
		if e.name == "podman" {
			rootfs := "/run/user/" + e.fresh(t)
			unpackSleep(t, rootfs)
			box := e.fresh(t)
			e.do(t, "run", "--detach", "--name", box, "--rootfs", rootfs, "/usr/bin/sleep", "1000")
			e.exeat(t, "attach", box, "--allow", "pypi.test").want(t, 1, rootfs+" is mounted at /, through which")
		}
		name, box := e.up(t, "--allow", "pypi.test")
		r := e.exeat(t, "ps").want(t, 0)
		if strings.Contains(r.stderr, name) {
			t.Errorf("an ordinary sandbox is complained of: %s", r.stderr)
		}
		e.remove(box)
		e.do(t, "run", "--detach", "--name", box, "--network", "container:"+name, "--volumes-from", name, debian, "sleep", "1000")
		if r := e.exeat(t, "ps").want(t, 0); !strings.Contains(r.stderr, "the sidecar's state is mounted") {
			t.Errorf("a sandbox that has the sidecar's state: %q", r.stderr)
		}
	})
}

// unpackSleep makes a root directory in which sleep runs, and removes it at the end.
func unpackSleep(t *testing.T, dir string) {
	t.Helper()
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tar := exec.Command("tar", "-xf", filepath.Join(scratch, "debian.tar"), "-C", dir, "--wildcards", "./bin", "./lib", "./lib64",
		"./usr/bin/sleep", "./usr/*/ld-linux*", "./usr/lib/*/libc.so.6")
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Docker heeds an added capability over a dropped one, which is why a service that
// adds NET_RAW is not put behind a sidecar that is told there is none. Podman refuses both.
func TestAnAddedCapabilityIsHadThoughItIsDropped(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		name := e.fresh(t)
		r := e.try("run", "--name", name, "--cap-add", "NET_RAW", "--cap-drop", "NET_RAW", debian, "grep", "CapBnd", "/proc/self/status")
		const netRaw = 1 << 13
		var bounding uint64
		if _, err := fmt.Sscanf(r.stdout, "CapBnd: %x", &bounding); r.status == 0 && (err != nil || bounding&netRaw == 0) {
			t.Errorf("%s has it not: then such a service need not be refused", r.stdout)
		}
		if r.status != 0 && !strings.Contains(r.stderr, "cannot be dropped and added") {
			t.Errorf("status %d: %s", r.status, r.stderr)
		}
	})
}
