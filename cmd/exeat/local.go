package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const socketSuffix = ".sock"

// runtimeDir is where the control sockets of local sandboxes are:
// $XDG_RUNTIME_DIR/exeat, /run/exeat for root, else a directory of the user's
// own under the system's temporary one.
func runtimeDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "exeat")
	}
	if os.Getuid() == 0 {
		return "/run/exeat"
	}
	return filepath.Join(os.TempDir(), "exeat-"+strconv.Itoa(os.Getuid()))
}

// makeRuntimeDir makes the directory, and refuses one that others could have
// planted: whoever owns it could answer in the engine's place.
func makeRuntimeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the control sockets: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ownedByUs(info) {
		return fmt.Errorf("%s: want a directory of our own with mode 0700, since it holds control sockets", dir)
	}
	return nil
}

// socketPath is where the sandbox called name listens.
func socketPath(name string) string {
	return filepath.Join(runtimeDir(), name+socketSuffix)
}

// localNames lists the sandboxes that have a control socket, answering or not.
func localNames() ([]string, error) {
	entries, err := os.ReadDir(runtimeDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), socketSuffix); ok {
			names = append(names, name)
		}
	}
	return names, nil
}
