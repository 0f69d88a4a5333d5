package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse says that somebody answers at the socket already.
var ErrInUse = errors.New("the control socket is in use")

// Listen makes the control socket at path, in place of one that nobody serves any
// more, with mode 0600; 0660 where access names a user or a group, and 0666 where
// it names both, so that root stays able to connect without CAP_DAC_OVERRIDE, as
// in a container: whom access does not name the server refuses. It never stands
// there with a wider mode, and Close removes it if it is still ours.
func Listen(path string, access Access) (net.Listener, error) {
	if err := makeRoom(path); err != nil {
		return nil, err
	}
	// Bound under another name, and moved to path once it is as it should be.
	scratch := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(scratch); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: scratch, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	ln.SetUnlinkOnClose(false)
	l := &listener{UnixListener: ln, path: path}
	if err := l.publish(scratch, access); err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), ln.Close(), os.Remove(scratch))
	}
	return l, nil
}

// makeRoom says whether path is free, or a socket that nobody serves.
func makeRoom(path string) error {
	if len(path) > 99 { // sun_path of unix(7) holds 107, and Listen puts a process number after it
		return fmt.Errorf("control socket: %s is too long for a socket: want at most 99 bytes", path)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("control socket: %w", err)
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("control socket: %s is there and is no socket: it is not ours to replace", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		return errors.Join(fmt.Errorf("%w: %s", ErrInUse, path), conn.Close())
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil // stale, or removed meanwhile
	default:
		return fmt.Errorf("%w: %s: %w", ErrInUse, path, err)
	}
}

// listener is a Unix listener that removes its own socket.
type listener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
	once sync.Once
}

func (l *listener) publish(scratch string, access Access) error {
	mode := fs.FileMode(0o600)
	uid, gid := -1, -1
	if access.UID != nil {
		mode, uid, gid = 0o660, int(*access.UID), os.Getegid()
	}
	if access.GID != nil {
		mode, gid = 0o660, int(*access.GID)
	}
	if access.UID != nil && access.GID != nil {
		mode = 0o666
	}
	if err := os.Chmod(scratch, mode); err != nil {
		return err
	}
	if uid >= 0 || gid >= 0 {
		if err := os.Chown(scratch, uid, gid); err != nil {
			return err
		}
	}
	made, err := os.Lstat(scratch)
	if err != nil {
		return err
	}
	l.made = made
	return os.Rename(scratch, l.path)
}

// Addr is the socket where clients find it.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: filepath.Clean(l.path), Net: "unix"} }

// Close stops listening and removes the socket, unless another has replaced it.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = l.UnixListener.Close()
		if now, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(now, l.made) {
			err = errors.Join(err, os.Remove(l.path))
		}
	})
	return err
}
