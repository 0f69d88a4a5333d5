package sealed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// defaultPath is execvp(3)'s where the environment has none.
const defaultPath = "/usr/local/bin:/bin:/usr/bin"

// findCommand looks a command up as a shell does: 127 where it is not found, 126
// where what was found may not be executed.
func findCommand(name string, env []string) (string, *ExecError) {
	if strings.Contains(name, "/") {
		switch err := executable(name); {
		case err == nil:
			return name, nil
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			return "", &ExecError{StatusNotFound, fmt.Sprintf("%s: no such file", name)}
		default:
			return "", &ExecError{StatusNotExecutable, fmt.Sprintf("%s: %v", name, err)}
		}
	}
	var refused error
	for _, dir := range filepath.SplitList(pathOf(env)) {
		if dir == "" {
			dir = "." // an empty element is the working directory, environ(7)
		}
		path := dir + "/" + name
		switch err := executable(path); {
		case err == nil:
			return path, nil
		case errors.Is(err, unix.EACCES):
			refused = fmt.Errorf("%s: %w", path, err)
		}
	}
	if refused != nil {
		return "", &ExecError{StatusNotExecutable, refused.Error()}
	}
	return "", &ExecError{StatusNotFound, name + ": command not found"}
}

func pathOf(env []string) string {
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	return path
}

func executable(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.IsDir() {
		return unix.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// startCommand starts CMD with descriptors 0 to 2 from the calling thread, whose
// filter and capabilities it inherits.
func startCommand(o orders) (pid int, failure *ExecError) {
	path, failure := findCommand(o.Args[0], o.Env)
	if failure != nil {
		return 0, failure
	}
	attr := &syscall.ProcAttr{Env: o.Env, Files: []uintptr{0, 1, 2}}
	if o.Terminal >= 0 {
		attr.Sys = &syscall.SysProcAttr{Foreground: true, Ctty: o.Terminal}
	}
	pid, err := syscall.ForkExec(path, o.Args, attr)
	if errors.Is(err, unix.ENOEXEC) {
		// A script without "#!" is the shell's, as in execvp(3).
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", path}, o.Args[1:]...), attr)
	}
	switch {
	case err == nil:
		return pid, nil
	case errors.Is(err, unix.ENOENT):
		return 0, &ExecError{StatusNotFound, fmt.Sprintf("%s: its interpreter is not there: %v", path, err)}
	}
	return 0, &ExecError{StatusNotExecutable, fmt.Sprintf("%s: %v", path, err)}
}
