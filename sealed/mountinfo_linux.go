package sealed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoint is one line of /proc/self/mountinfo (proc(5)).
type mountPoint struct {
	device string // major:minor
	root   string // what of the file system is mounted
	at     string
	flags  uintptr // MS_* of the mount, for remounting it
	fstype string
}

// readMounts lists the mounts that this process sees, in order of mounting.
func readMounts() ([]mountPoint, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(b))
}

func parseMounts(text string) ([]mountPoint, error) {
	var out []mountPoint
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
		dash := 6
		for dash < len(f) && f[dash] != "-" {
			dash++
		}
		if dash+1 >= len(f) {
			return nil, fmt.Errorf("mountinfo line %q is cut short", strings.TrimSpace(line))
		}
		out = append(out, mountPoint{
			device: f[2], root: unescapeMount(f[3]), at: unescapeMount(f[4]),
			flags: mountFlags(f[5]), fstype: f[dash+1],
		})
	}
	return out, nil
}

// unescapeMount undoes the kernel's \040 for blanks, tabs, newlines and backslashes.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func mountFlags(options string) uintptr {
	var flags uintptr
	for word := range strings.SplitSeq(options, ",") {
		switch word {
		case "ro":
			flags |= unix.MS_RDONLY
		case "nosuid":
			flags |= unix.MS_NOSUID
		case "nodev":
			flags |= unix.MS_NODEV
		case "noexec":
			flags |= unix.MS_NOEXEC
		case "noatime":
			flags |= unix.MS_NOATIME
		case "nodiratime":
			flags |= unix.MS_NODIRATIME
		case "relatime":
			flags |= unix.MS_RELATIME
		}
	}
	return flags
}

// below says whether path is dir or lies in it.
func below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// aliases are all the paths under which the file at path (absolute, no links)
// can be reached: a file system may be mounted in several places.
func aliases(mounts []mountPoint, path string) []string {
	out := []string{path}
	home := mountOf(mounts, path)
	if home == nil {
		return out
	}
	inside := home.inside(path)
	for _, m := range mounts {
		if m.device == home.device && below(inside, m.root) {
			if p := join(m.at, strings.TrimPrefix(inside, strings.TrimSuffix(m.root, "/"))); p != path {
				out = append(out, p)
			}
		}
	}
	return out
}

// mountOf is the mount that path lies on.
func mountOf(mounts []mountPoint, path string) (home *mountPoint) {
	for i := range mounts {
		// The last of the longest wins: it covers those before it.
		if m := &mounts[i]; below(path, m.at) && (home == nil || len(m.at) >= len(home.at)) {
			home = m
		}
	}
	return home
}

// inside is where path, which lies on the mount, is in its file system.
func (m *mountPoint) inside(path string) string {
	return join(m.root, strings.TrimPrefix(path, strings.TrimSuffix(m.at, "/")))
}

func join(dir, rest string) string { return filepath.Join(dir, rest) }
