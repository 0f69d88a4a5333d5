//go:build linux

package proxy

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// acceptedInARow is how many connections are accepted in one turn.
const acceptedInARow = 4

// turns makes an acceptor take turns with the rest of the program. The runtime looks
// for sockets that are ready when nothing else is to be run (or every 10 ms), and a
// flood of connections always leaves something to be run: those that are being set
// up. An acceptor that goes on while there are connections thus keeps the relays
// from hearing of their bytes. This one gets in line with them: after a few
// connections it waits until the poller tells of a descriptor that it has just made
// ready, and so of everything that became ready before.
type turns struct {
	file *os.File // an eventfd that the runtime's poller watches
	raw  syscall.RawConn
	row  int
}

func newTurns() (*turns, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	file := os.NewFile(uintptr(fd), "turns")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &turns{file: file, raw: raw}, nil
}

// taken counts a connection that was accepted, at once or after a wait for one,
// which was a wait at the poller. It waits when the turn is over.
func (t *turns) taken(waited bool) error {
	if waited {
		t.row = 0
	}
	if t.row++; t.row < acceptedInARow {
		return nil
	}
	t.row = 0
	var failed error
	asked := false
	err := t.raw.Read(func(fd uintptr) bool {
		var count [8]byte
		if !asked {
			asked = true
			count[0] = 1
			_, failed = unix.Write(int(fd), count[:])
			return failed != nil
		}
		_, failed = unix.Read(int(fd), count[:])
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("wait for a turn: %w", err)
	}
	return nil
}

func (t *turns) close() error { return t.file.Close() }
