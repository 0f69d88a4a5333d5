package sealed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hostSockets lists the path names at which a socket of the host may be met: each is
// a way to have the host do something (bypass B71). A path name is reached from every
// network namespace, so that those of all count, and one that does not listen yet may
// do so later. Those that were bound relative to some directory are looked for; what
// is not found of our own namespace's is named.
func hostSockets() (paths, lost []string, err error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, nil, fmt.Errorf("list the host's sockets: %w", err)
	}
	paths, relative := parseSockets(string(b))
	found, lost := locateRelative(relative)
	paths = append(paths, found...)
	there := lookAround()
	for _, text := range there.sockets {
		absolute, relative := parseSockets(text)
		found, _ := locateRelative(relative)
		paths = append(append(paths, absolute...), found...)
	}
	paths = append(paths, there.translate(paths)...)
	paths = append(paths, neighbours(paths)...)
	slices.Sort(paths)
	return slices.Compact(paths), lost, nil
}

func parseSockets(text string) (absolute, relative []string) {
	for line := range strings.Lines(text) {
		// Num RefCount Protocol Flags Type St Inode Path; a path may hold blanks.
		var f []string
		rest := strings.TrimLeft(line, " ")
		for len(f) < 7 {
			word, after, ok := strings.Cut(rest, " ")
			if !ok {
				break
			}
			f = append(f, word)
			rest = strings.TrimLeft(after, " ")
		}
		path := strings.TrimSuffix(rest, "\n")
		if len(f) < 7 || path == "" || path[0] == '@' {
			continue
		}
		if _, err := strconv.ParseUint(f[3], 16, 64); err != nil {
			continue // the heading
		}
		if filepath.IsAbs(path) {
			absolute = append(absolute, filepath.Clean(path))
		} else {
			relative = append(relative, path)
		}
	}
	slices.Sort(absolute)
	slices.Sort(relative)
	return slices.Compact(absolute), slices.Compact(relative)
}

// locateRelative finds where a relatively bound name may lie: in the working
// directory of some process of ours. What is not found is returned.
func locateRelative(names []string) (found, lost []string) {
	if len(names) == 0 {
		return nil, nil
	}
	dirs := workingDirectories()
	for _, name := range names {
		hit := false
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			if st, err := os.Stat(path); err == nil && st.Mode().Type() == os.ModeSocket {
				found, hit = append(found, path), true
			}
		}
		if !hit {
			lost = append(lost, name)
		}
	}
	return found, lost
}

func workingDirectories() []string {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil
	}
	var dirs []string
	for _, link := range links {
		// Other users' processes do not tell; their sockets are theirs to guard.
		if dir, err := os.Readlink(link); err == nil {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// maskSockets covers every socket of the host that can still be reached.
func (v *view) maskSockets() error {
	if v.Off.Sockets {
		return nil
	}
	for _, path := range v.Sockets {
		if err := v.maskSocket(path); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) maskSocket(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil //nolint:nilerr // not there, or out of reach for CMD as it is for us
	}
	// A service that starts anew removes its socket, and our cover with it, before
	// it makes another: where a directory is for sockets alone it goes as a whole.
	if dir := filepath.Dir(real); v.mayGo(dir) && onlySockets(dir) {
		if err := v.hide(dir); err != nil {
			return err
		}
	}
	for _, p := range aliases(v.mounts, real) {
		st, err := os.Lstat(p)
		if err != nil || st.Mode().Type() != os.ModeSocket || v.keeps(p) || v.keeps(path) {
			continue
		}
		// One that has just been removed needs no hiding.
		if err := bind(blankFile, p); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("hide the socket: %w", err)
		}
	}
	return nil
}

// mayGo says that nothing in the directory is asked for.
func (v *view) mayGo(dir string) bool {
	for _, k := range v.kept {
		if below(k.path, dir) {
			return false
		}
	}
	return dir != "/" && !below(v.Dir, dir)
}

// onlySockets says whether the directory holds nothing else.
func onlySockets(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Type() != os.ModeSocket {
			return false
		}
	}
	return true
}
