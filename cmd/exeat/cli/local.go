//go:build !image

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exeat/exeat/control"
	"github.com/exeat/exeat/control/client"
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
	return temporaryControlDir(os.TempDir(), os.Getuid())
}

// temporaryControlDir is a user's directory of control sockets below temporary.
func temporaryControlDir(temporary string, uid int) string {
	return filepath.Join(temporary, "exeat-"+strconv.Itoa(uid))
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

// localClient gives a client of the local sandbox whose control socket is at path.
// It speaks to an engine only: a process in another of the user's sandboxes may have
// put its own socket there.
func localClient(path string) *client.Client {
	return client.NewDialer(path, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		if err := control.CheckServer(conn); err != nil {
			return nil, errors.Join(fmt.Errorf("no engine listens there: %w", err), conn.Close())
		}
		return conn, nil
	})
}

// sharedTemporary is the system's directory for temporary files where no environment
// names another.
const sharedTemporary = "/tmp"

// controlDirs are where the control sockets of this user's sandboxes are, ours and
// those that are started in other environments: each is hidden in a sandbox. What is
// not there cannot be hidden, and could be made from inside: so the one that others
// would come to is made.
func controlDirs() []string {
	dirs := []string{runtimeDir()}
	own := os.Getuid()
	if own != 0 {
		// One that cannot be made here, nobody inside can make either.
		if err := os.Mkdir(temporaryControlDir(sharedTemporary, own), 0o700); err == nil {
			dirs = append(dirs, temporaryControlDir(sharedTemporary, own))
		}
	}
	ids := []int{own}
	if caller, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil {
		ids = append(ids, caller)
	}
	for _, id := range ids {
		for _, temporary := range []string{os.TempDir(), sharedTemporary} {
			dir := temporaryControlDir(temporary, id)
			// A link would hide what it leads to.
			if info, err := os.Lstat(dir); err == nil && info.IsDir() {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// completeNames offers the names of the local sandboxes.
func completeNames() ([]string, cobra.ShellCompDirective) {
	names, err := localNames()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
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
