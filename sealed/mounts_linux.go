package sealed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// stage is where the files that replace the host's are made: a tmpfs that lies
// on /proc until the real one comes.
const stage = "/proc"

// view builds what CMD sees of the file system.
type view struct {
	orders
	mounts []mountPoint
	kept   []keptPath
	hidden []string // directories that are an empty tmpfs by now
	warn   []string
}

// keptPath is a detached copy of what is given back.
type keptPath struct {
	path string
	fd   int
	dir  bool
}

// arrangeMounts gives CMD its own view: nothing of the host's runtime
// directories and sockets, its own /proc, its own resolver configuration.
func arrangeMounts(o orders) (warnings []string, err error) {
	// Nothing that the host mounts later may appear here, nor ours there.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make the mounts private: %w", err)
	}
	v := &view{orders: o}
	if v.mounts, err = readMounts(); err != nil {
		return nil, err
	}
	steps := []func() error{v.keep, v.openStage, v.maskSockets, v.hideDirs, v.ownIPC, v.giveBack, v.hideFiles, v.replaceFiles, v.closeStage, v.mountProc}
	if o.Root {
		steps = append(steps, v.restrictRoot)
	} else {
		steps = append(steps, v.readOnlyCgroups)
	}
	steps = append(steps, v.coverProcs)
	for _, step := range steps {
		if err := step(); err != nil {
			return v.warn, err
		}
	}
	return v.warn, nil
}

// keep takes hold of the paths to keep, before anything covers them.
func (v *view) keep() error {
	for _, path := range v.Keep {
		st, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("keep: %w", err)
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.O_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("keep %s: %w", path, os.NewSyscallError("open_tree", err))
		}
		v.kept = append(v.kept, keptPath{path: path, fd: fd, dir: st.IsDir()})
	}
	return nil
}

func (v *view) keeps(path string) bool {
	for _, k := range v.kept {
		if below(path, k.path) {
			return true
		}
	}
	return false
}

// The files of the stage.
const (
	blankFile  = stage + "/blank"
	blankDir   = stage + "/blankdir"
	resolvFile = stage + "/resolv.conf"
	switchFile = stage + "/nsswitch.conf"
	hostsFile  = stage + "/hosts"
)

func (v *view) openStage() error {
	if err := mountTmpfs(stage, "0755"); err != nil {
		return err
	}
	for path, content := range map[string]string{blankFile: "", resolvFile: v.ResolvConf, switchFile: v.NSSwitch, hostsFile: v.Hosts} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	if err := os.Chmod(blankFile, 0); err != nil {
		return err
	}
	return os.Mkdir(blankDir, 0o555)
}

func mountTmpfs(at, mode string) error {
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=16m,mode="+mode); err != nil {
		return fmt.Errorf("mount an empty directory on %s: %w", at, err)
	}
	return nil
}

// hideDirs empties the directories where the host's services are met.
func (v *view) hideDirs() error {
	dirs := v.HideDirs
	if !v.Off.Run {
		dirs = append([]string{"/run", "/var/run"}, dirs...)
		if v.RuntimeDir != "" {
			dirs = append(dirs, v.RuntimeDir)
		}
	}
	for _, dir := range dirs {
		if err := v.hide(dir); err != nil {
			return err
		}
	}
	if v.Off.Run {
		return nil
	}
	// Where programs that are told of it expect it to be.
	if v.RuntimeDir != "" && v.isHidden(v.RuntimeDir) {
		if err := os.MkdirAll(v.RuntimeDir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) hide(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil // nothing to hide, or no way for CMD to get there
	}
	if err != nil {
		return err
	}
	if real == "/" {
		return fmt.Errorf("hide %s: it is the root directory", dir)
	}
	st, err := os.Stat(real)
	if err != nil {
		return err
	}
	for _, path := range aliases(v.mounts, real) {
		// Something else may be mounted over an alias, or be in its way.
		there, err := os.Stat(path)
		if err != nil || path != real && !os.SameFile(st, there) || path == "/" || v.isHidden(path) {
			continue
		}
		if err := v.empty(path, st); err != nil {
			return err
		}
	}
	return nil
}

// empty mounts an empty directory on one, at one of its paths.
func (v *view) empty(real string, st os.FileInfo) error {
	links, err := outwardLinks(real)
	if err != nil {
		return err
	}
	if err := mountTmpfs(real, fmt.Sprintf("%#o", st.Mode().Perm())); err != nil {
		return err
	}
	v.hidden = append(v.hidden, real)
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(real, name)); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) isHidden(path string) bool {
	for _, dir := range v.hidden {
		if below(path, dir) {
			return true
		}
	}
	return false
}

// outwardLinks are the symbolic links of a directory that lead out of it: NixOS
// has its system at /run/current-system, and a link hides nothing.
func outwardLinks(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range entries {
		if e.Type() != os.ModeSymlink {
			continue
		}
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil && filepath.IsAbs(target) && !below(filepath.Clean(target), dir) {
			out[e.Name()] = target
		}
	}
	return out, nil
}

// ownIPC takes away what the IPC namespace leaves of the host's: shared memory and
// semaphores (shm_overview(7)), which are files, and message queues, which a mount of
// the host's reaches (mq_overview(7)).
func (v *view) ownIPC() error {
	if v.Off.IPC {
		return nil
	}
	for _, m := range v.mounts {
		if m.fstype != "mqueue" || v.isHidden(m.at) {
			continue
		}
		err := unix.Mount("mqueue", m.at, "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		if err != nil && !outOfReach(err) {
			return fmt.Errorf("cover the host's message queues at %s: %w", m.at, err)
		}
	}
	const shm = "/dev/shm"
	if st, err := os.Lstat(shm); err != nil || !st.IsDir() || below(v.Dir, shm) {
		return nil //nolint:nilerr // none, or CMD works there
	}
	if err := unix.Mount("shm", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	v.hidden = append(v.hidden, shm)
	return nil
}

// giveBack puts the kept paths where they were.
func (v *view) giveBack() error {
	for _, k := range v.kept {
		real := k.path
		if dir, err := filepath.EvalSymlinks(filepath.Dir(k.path)); err == nil {
			real = filepath.Join(dir, filepath.Base(k.path))
		}
		if v.isHidden(real) {
			if err := placeholder(real, k.dir); err != nil {
				return fmt.Errorf("keep %s: %w", k.path, err)
			}
			if err := unix.MoveMount(k.fd, "", unix.AT_FDCWD, real, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
				return fmt.Errorf("keep %s: %w", k.path, os.NewSyscallError("move_mount", err))
			}
		}
		if err := unix.Close(k.fd); err != nil {
			return err
		}
	}
	return nil
}

// hideFiles covers the files that CMD is not to see.
func (v *view) hideFiles() error {
	for _, path := range v.HideFiles {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue // not there, or out of reach for CMD as it is for us
		}
		for _, p := range aliases(v.mounts, real) {
			st, err := os.Lstat(p)
			if err != nil || !st.Mode().IsRegular() {
				continue
			}
			if err := bind(blankFile, p); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("hide %s: %w", path, err)
			}
		}
	}
	return nil
}

// placeholder makes the file or directory that something is mounted on.
func placeholder(path string, dir bool) error {
	if dir {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// replaceFiles puts the sandbox's own name service configuration in place.
func (v *view) replaceFiles() error {
	if v.ResolvConf != "" {
		if err := v.replace(resolvFile, "/etc/resolv.conf"); err != nil {
			return err
		}
	}
	if v.NSSwitch != "" && !v.Off.NSSwitch {
		if err := v.replace(switchFile, "/etc/nsswitch.conf"); err != nil {
			return err
		}
	}
	if v.Hosts != "" {
		return v.replace(hostsFile, "/etc/hosts")
	}
	return nil
}

// replace mounts the staged file over path. A link that leads into a hidden
// directory (systemd-resolved's /run/systemd/resolve) is given its file there.
func (v *view) replace(staged, path string) error {
	real, err := followLink(path)
	if err != nil {
		return err
	}
	if v.isHidden(real) {
		if err := placeholder(real, false); err != nil {
			return err
		}
	}
	switch _, err := os.Stat(real); {
	case errors.Is(err, os.ErrNotExist):
		v.warn = append(v.warn, fmt.Sprintf("%s does not exist and cannot be made here", path))
		return nil
	case err != nil:
		return err
	}
	return bind(staged, real)
}

// followLink resolves a path whose last part may be a link to something that is
// not there any more.
func followLink(path string) (string, error) {
	for range 40 {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		switch {
		case err == nil:
			path = filepath.Join(dir, filepath.Base(path))
		case !errors.Is(err, os.ErrNotExist):
			return "", err
		}
		target, err := os.Readlink(path)
		if err != nil {
			return path, nil //nolint:nilerr // no link: we are there
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = filepath.Clean(target)
	}
	return "", fmt.Errorf("%s: %w", path, unix.ELOOP)
}

// closeStage takes the stage away; what was bound from it stays.
func (v *view) closeStage() error {
	if err := unix.Unmount(stage, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the staging directory: %w", err)
	}
	return nil
}

// mountProc gives the PID namespace its /proc: the host's would show, and let signal,
// the host's processes (bypass B73).
func (v *view) mountProc() error {
	if v.Off.Proc {
		return nil
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("mount /proc: %w: the kernel allows it only where the whole of /proc is visible, and here parts of it are covered%s; start the container with `--security-opt systempaths=unconfined`",
				err, v.coveredProc())
		}
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// coverProcs covers every other /proc of the host by the sandbox's own, with all that
// is masked in it: else what is not would be there, and would allow a fresh one to be
// mounted in a nested user namespace besides (mount_too_revealing in the kernel's
// fs/namespace.c).
func (v *view) coverProcs() error {
	if v.Off.Proc {
		return nil
	}
	for _, m := range v.mounts {
		if m.fstype != "proc" || below(m.at, "/proc") || v.isHidden(m.at) {
			continue
		}
		if err := unix.Mount("/proc", m.at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil && !outOfReach(err) {
			return fmt.Errorf("cover the host's processes at %s: %w", m.at, err)
		}
	}
	return nil
}

// outOfReach says that a path is not there, or that CMD cannot get to it as we cannot.
func outOfReach(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)
}

// coveredProc lists what is mounted over parts of /proc.
func (v *view) coveredProc() string {
	var at []string
	for _, m := range v.mounts {
		if strings.HasPrefix(m.at, "/proc/") {
			at = append(at, m.at)
		}
	}
	if len(at) == 0 {
		return ""
	}
	return " (" + strings.Join(at, ", ") + ")"
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", filepath.Base(from), to, err)
	}
	return nil
}
