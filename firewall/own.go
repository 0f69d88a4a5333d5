package firewall

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoCgroup says that our sockets cannot be told apart by control group here.
var ErrNoCgroup = errors.New("own traffic cannot be matched by control group")

// NewSecrets draws a mark and a priority that no packet of others bears: 64
// random bits, neither zero nor the probe's mark.
func NewSecrets(probeMark uint32) Secrets {
	for {
		var b [8]byte
		// It never fails (crypto/rand): a start without randomness crashes instead.
		_, err := rand.Read(b[:])
		s := Secrets{binary.NativeEndian.Uint32(b[:]), binary.NativeEndian.Uint32(b[4:])}
		if err == nil && s.Mark != 0 && s.Priority != 0 && s.Mark != probeMark {
			return s
		}
	}
}

// SetOnSocket puts the secrets on a socket of ours; the fallback without control
// groups needs them on every one. It takes NET_ADMIN.
func (s Secrets) SetOnSocket(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(s.Mark)); err != nil {
		return os.NewSyscallError("setsockopt(SO_MARK)", err)
	}
	return os.NewSyscallError("setsockopt(SO_PRIORITY)", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, int(s.Priority)))
}

// cgroupLevels is how deep a control group may lie (bounded by the kernel at
// 255; engines use five or six).
const cgroupLevels = 32

// ProbeCgroup finds out how our sockets are matched by control group: the
// group's id from a socket of our own, and the level by trying each, since
// kernels count it from different roots. For that it puts a table of its own
// into the namespace of the calling thread for a moment, whose rules match
// nothing but its own datagrams on loopback. An error that is ErrNoCgroup
// means that the fallback is needed.
func ProbeCgroup() (Own, error) {
	s, err := newProbeSocket()
	if err != nil {
		return Own{}, err
	}
	defer s.close()
	id, err := s.cgroup()
	switch {
	case err != nil:
		return Own{}, fmt.Errorf("%w: %w", ErrNoCgroup, err)
	case id <= 1:
		// Everybody is in the root group.
		return Own{}, fmt.Errorf("%w: we are in the root group", ErrNoCgroup)
	}
	if err := alone(id); err != nil {
		return Own{}, fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	level, err := s.level(id)
	if err != nil {
		return Own{}, err
	}
	return Own{Level: level, Cgroup: id}, nil
}

// probeSocket is a UDP socket on the loopback address.
type probeSocket struct {
	fd   int
	port uint16 // its own
}

func newProbeSocket() (*probeSocket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &probeSocket{fd: fd}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		s.close()
		return nil, os.NewSyscallError("bind", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		s.close()
		return nil, os.NewSyscallError("getsockname", err)
	}
	if in, ok := name.(*unix.SockaddrInet4); ok {
		s.port = uint16(in.Port)
	}
	return s, nil
}

func (s *probeSocket) close() {
	// Nothing is buffered that closing could lose.
	if err := unix.Close(s.fd); err != nil {
		return
	}
}

// cgroup asks the kernel for the control group of the socket.
func (s *probeSocket) cgroup() (id uint64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	d, err := openDiag()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	err = d.dump(sockDiagByFamily, unix.NLM_F_DUMP, diagRequest(unix.AF_INET, unix.IPPROTO_UDP, allStates, diagID{}), func(_ unix.NlMsghdr, data []byte) error {
		m, attrs, err := parseDiag(data)
		if err != nil || m.inode != uint32(st.Ino) {
			return err
		}
		return attributes(attrs, func(typ uint16, b []byte) {
			if typ == diagCgroupID && len(b) == 8 {
				id = binary.NativeEndian.Uint64(b)
			}
		})
	})
	if err == nil && id == 0 {
		err = errors.New("the kernel does not tell a socket's control group")
	}
	return id, err
}

// probeTable is where level counts; it is gone when level returns.
const probeTable = "exeat_probe"

// level sends one datagram for each level, to as many ports, each of which is
// refused where the level matches.
func (s *probeSocket) level(id uint64) (level uint32, err error) {
	k, err := Open()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	const first = 9 // discard and up; one more than the levels is the control
	me := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	c := Chain{Name: "output", Hook: &Hook{Type: "filter", Point: Output, Priority: -400}}
	for l := range uint32(cgroupLevels) {
		c.Rules = append(c.Rules, rule(To(hostPrefix(me)), UDPSPort(s.port), DPort(uint16(first+l)), InCgroup(l, id), Drop()))
	}
	t := Table{Family: Inet, Name: probeTable, Chains: []Chain{c}}
	if err := k.Apply(Ruleset{Tables: []Table{t}}); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	defer func() { err = errors.Join(err, k.Delete(t)) }()
	refused := func(port int) bool {
		err := unix.Sendto(s.fd, []byte{0}, 0, &unix.SockaddrInet4{Port: port, Addr: me.As4()})
		return errors.Is(err, unix.EPERM)
	}
	if refused(first + cgroupLevels) {
		return 0, errors.New("cannot find the control group's level: other rules refuse datagrams on loopback")
	}
	for l := range uint32(cgroupLevels) {
		if refused(int(first + l)) {
			return l, nil
		}
	}
	return 0, fmt.Errorf("%w: no level of group %d matches", ErrNoCgroup, id)
}
