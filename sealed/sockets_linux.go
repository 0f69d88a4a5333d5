package sealed

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// soAcceptCon is the flag of a listening socket in /proc/net/unix.
const soAcceptCon = 0x10000

// The types of socket in /proc/net/unix.
const typeDatagram = 2

// hostSockets lists the path names at which a socket of this network namespace
// takes connections or datagrams: each is a way to have the host do something
// (bypass B71). Those that were bound relative to some directory are looked for;
// what is not found is named.
func hostSockets() (paths, lost []string, err error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, nil, fmt.Errorf("list the host's sockets: %w", err)
	}
	paths, relative := parseSockets(string(b))
	found, lost := locateRelative(relative)
	return append(paths, found...), lost, nil
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
		flags, err := strconv.ParseUint(f[3], 16, 64)
		if err != nil {
			continue // the heading
		}
		typ, err := strconv.ParseUint(f[4], 16, 64)
		if err != nil || flags&soAcceptCon == 0 && typ != typeDatagram {
			continue
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
