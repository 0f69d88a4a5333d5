package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerOf reads the credentials of who connected.
func peerOf(conn *net.UnixConn) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	peer := Peer{pidfd: -1}
	var peerErr error
	err = raw.Control(func(fd uintptr) { peerErr = peer.read(int(fd)) })
	return peer, errors.Join(err, peerErr)
}

func (p *Peer) read(fd int) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("SO_PEERCRED: %w", err)
	}
	p.PID, p.UID, p.GIDs = int(cred.Pid), cred.Uid, []uint32{cred.Gid}
	if p.GIDs, err = appendPeerGroups(p.GIDs, fd); err != nil {
		return fmt.Errorf("SO_PEERGROUPS: %w", err)
	}
	// Linux 6.5; without it a check goes by the number alone.
	if pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
		p.pidfd = pidfd
	}
	return nil
}

// appendPeerGroups adds the supplementary groups (Linux 4.13).
func appendPeerGroups(gids []uint32, fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return append(gids, groups[:size/4]...), nil
		case errno == unix.ERANGE && int(size) > len(groups)*4:
			groups = make([]uint32, size/4) // the kernel says how many there are
		case errno == unix.ENOPROTOOPT:
			return gids, nil
		default:
			return gids, errno
		}
	}
}

func (p *Peer) close() {
	if p.pidfd >= 0 {
		// closing a pidfd only drops a reference: there is nothing to lose
		if err := unix.Close(p.pidfd); err != nil {
			p.pidfd = -1
		}
	}
}

// alive says whether the process that connected is still there, so that what
// was just read below /proc/PID was its own and not a successor's.
func (p *Peer) alive() error {
	if p.pidfd < 0 {
		return nil
	}
	if err := unix.PidfdSendSignal(p.pidfd, 0, nil, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}

// SameNamespaces gives a check for Config.Authorize that refuses every peer that
// is not in the network and user namespace of the process that calls it: the
// sandbox's own processes run with the user's uid (bypass.md B70). A peer whose
// namespaces can't be read is refused.
func SameNamespaces() (func(Peer) error, error) {
	own := map[string]nsID{}
	for _, kind := range []string{"net", "user"} {
		id, err := namespaceOf("self", kind)
		if err != nil {
			return nil, fmt.Errorf("our own namespaces: %w", err)
		}
		own[kind] = id
	}
	return func(p Peer) error {
		if p.PID <= 0 {
			return errors.New("the peer is in a process namespace that we can't see into")
		}
		for kind, want := range own {
			id, err := namespaceOf(fmt.Sprint(p.PID), kind)
			if err != nil {
				return fmt.Errorf("the namespaces of process %d can't be read: %w", p.PID, err)
			}
			if id != want {
				return fmt.Errorf("process %d is in another %s namespace than this engine", p.PID, kind)
			}
		}
		if err := p.alive(); err != nil {
			return fmt.Errorf("process %d ended before it could be told apart: %w", p.PID, err)
		}
		return nil
	}, nil
}

// CheckServer says whether the process that listens at the other end of conn, a Unix
// connection, is of our own process namespace: one in a sandbox, with the user's uid,
// could have put its own socket where an engine's is looked for, and claim that a
// swap was made. The engine hides the rest of itself (PR_SET_DUMPABLE), so that this
// goes by its pidfd alone.
func CheckServer(conn net.Conn) error {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a %T has no peer credentials", conn)
	}
	peer, err := peerOf(unixConn)
	if err != nil {
		return fmt.Errorf("the credentials of who listens can't be read: %w", err)
	}
	defer peer.close()
	if peer.pidfd < 0 && peer.PID > 0 {
		if peer.pidfd, err = unix.PidfdOpen(peer.PID, 0); err != nil {
			return fmt.Errorf("process %d, which listens, can't be held: %w", peer.PID, err)
		}
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", peer.pidfd))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(info)) {
		// The number in each process namespace from ours down to its own.
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if f := strings.Fields(numbers); len(f) != 1 || f[0] == "0" || f[0] == "-1" {
				return fmt.Errorf("process %d, which listens, is not of this process namespace: an engine would be", peer.PID)
			}
			return nil
		}
	}
	return fmt.Errorf("process %d, which listens, has ended", peer.PID)
}

type nsID struct{ dev, ino uint64 }

func namespaceOf(process, kind string) (nsID, error) {
	path := "/proc/" + process + "/ns/" + kind
	info, err := os.Stat(path)
	if err != nil {
		return nsID{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nsID{}, fmt.Errorf("%s: no inode", path)
	}
	return nsID{uint64(stat.Dev), stat.Ino}, nil
}
