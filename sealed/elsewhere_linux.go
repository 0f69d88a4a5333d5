package sealed

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// surroundings are what other processes see that we do not: the sockets of their
// network namespaces, and where the paths lie that they bound.
type surroundings struct {
	sockets []string       // texts of /proc/PID/net/unix, one a network namespace
	roots   []string       // root directories other than ours (chroot(2))
	views   [][]mountPoint // mounts of other mount namespaces
	own     []mountPoint
}

// lookAround looks at every process that lets us: what another user's hides is that
// user's to guard.
func lookAround() surroundings {
	var s surroundings
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return s // the pattern is well formed
	}
	if s.own, err = readMounts(); err != nil {
		s.own = nil // nothing can be translated then
	}
	networks := map[uint64]bool{inodeOf("/proc/self/net/unix"): true, 0: true}
	mine, err := os.Readlink("/proc/self/ns/mnt")
	views := map[string]bool{mine: true}
	for _, dir := range dirs {
		// The file's number is its network namespace's own.
		if n := inodeOf(dir + "/net/unix"); !networks[n] {
			networks[n] = true
			if b, err := os.ReadFile(dir + "/net/unix"); err == nil {
				s.sockets = append(s.sockets, string(b))
			}
		}
		if root, err := os.Readlink(dir + "/root"); err == nil && root != "/" && !slices.Contains(s.roots, root) {
			s.roots = append(s.roots, root)
		}
		view, linkErr := os.Readlink(dir + "/ns/mnt")
		if err != nil || linkErr != nil || views[view] {
			continue
		}
		views[view] = true
		if b, err := os.ReadFile(dir + "/mountinfo"); err == nil {
			if mounts, err := parseMounts(string(b)); err == nil {
				s.views = append(s.views, mounts)
			}
		}
	}
	return s
}

func inodeOf(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return st.Ino
}

// translate gives the paths here of what others bound at these paths.
func (s surroundings) translate(paths []string) []string {
	var here []string
	add := func(path string) {
		if isSocket(path) {
			here = append(here, path)
		}
	}
	for _, path := range paths {
		for _, root := range s.roots {
			add(filepath.Join(root, path))
		}
		for _, view := range s.views {
			home := mountOf(view, path)
			if home == nil {
				continue
			}
			inside := home.inside(path)
			for _, m := range s.own {
				if m.device == home.device && below(inside, m.root) {
					add(join(m.at, strings.TrimPrefix(inside, strings.TrimSuffix(m.root, "/"))))
				}
			}
		}
	}
	return here
}

// neighbours are the sockets in the directories of others: a socket is listed by the
// name that it was bound to, and may have been renamed since.
func neighbours(paths []string) []string {
	var found []string
	seen := map[string]bool{}
	for _, path := range paths {
		dir := filepath.Dir(path)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // not there, or out of reach for CMD as it is for us
		}
		for _, e := range entries {
			if e.Type() == os.ModeSocket {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	return found
}

func isSocket(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().Type() == os.ModeSocket
}
