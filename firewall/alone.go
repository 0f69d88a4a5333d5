package firewall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// errShared says that others than our own processes are in our control group.
var errShared = errors.New("processes that are not ours are in our control group")

// alone makes sure that the control group is ours alone. An engine that makes none
// for a container (podman --cgroups=disabled, rootless engines on cgroup v1) leaves
// us, and the sandbox beside us, in the group of whoever called it: then it tells
// nobody apart.
func alone(id uint64) error {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	path := groupPath(string(own))
	for _, dir := range groupDirs(string(mounts), path) {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil || st.Ino != id {
			continue
		}
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		// 0 is a process that our PID namespace has no number for (cgroups(7)).
		if slices.Contains(strings.Fields(string(procs)), "0") {
			return errShared
		}
		return nil
	}
	if !madeForContainer(path) {
		return fmt.Errorf("%w, for all that can be seen of it: %q is no container's", errShared, path)
	}
	return nil
}

// groupPath is our path in the unified hierarchy, of /proc/self/cgroup.
func groupPath(own string) string {
	for line := range strings.Lines(own) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(path, "\n")
		}
	}
	return ""
}

// groupDirs are where the group may be seen, of /proc/self/mounts.
func groupDirs(mounts, path string) []string {
	var dirs []string
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			dirs = append(dirs, filepath.Join(f[1], path), f[1])
		}
	}
	return dirs
}

// madeForContainer says that the group bears the id of a container, so that an
// engine made it for that one.
func madeForContainer(path string) bool {
	return regexp.MustCompile(`^(?:[a-z-]+-)?[0-9a-f]{64}(?:\.scope)?$`).MatchString(filepath.Base(path))
}
