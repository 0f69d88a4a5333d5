package sealed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/exeat/exeat/firewall"
	"golang.org/x/sys/unix"
)

// Sandbox is the namespaces of one command, and our way into them.
type Sandbox struct {
	process  *os.Process
	conn     *net.UnixConn
	term     *terminal
	warnings []string
	who      identity

	transparent, explicit, dnsTCP []*net.TCPListener
	dnsUDP                        []*net.UDPConn
	rules                         *firewall.Kernel
	kernel                        *Kernel
	log                           *os.File
	ports                         map[string]uint16

	reaped   chan struct{} // closed when process 1 is gone, and all others with it
	state    *os.ProcessState
	stopKill func() bool

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once

	mu       sync.Mutex
	released bool
	ended    chan struct{} // closed when follow is done
	status   int
	known    bool // status is CMD's own
}

// Start makes the namespaces with everything in them but the command, which
// Release starts. When ctx ends the sandbox is killed. An error that wraps
// ErrUserNamespaces says that this machine forbids them.
func Start(ctx context.Context, spec Spec) (*Sandbox, error) {
	if len(spec.Args) == 0 || spec.Args[0] == "" {
		return nil, errors.New("no command to run")
	}
	who, err := whoIs(spec.AsRoot)
	if err != nil {
		return nil, err
	}
	stdio := [3]*os.File{spec.Stdin, spec.Stdout, spec.Stderr}
	for i, own := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if stdio[i] == nil {
			stdio[i] = own
		}
	}
	s := &Sandbox{who: who, reaped: make(chan struct{}), ended: make(chan struct{}), closing: make(chan struct{}), ports: map[string]uint16{}}
	if s.warnings, err = inspectStdio(stdio); err != nil {
		return nil, err
	}
	if s.term, err = findTerminal(stdio); err != nil {
		return nil, err
	}
	o, err := gather(spec, who, s.term)
	if err != nil {
		return nil, err
	}
	for _, name := range o.LostSockets {
		s.warnings = append(s.warnings, fmt.Sprintf("a process listens at %q, relative to a directory that could not be found: it is not hidden", name))
	}
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	s.warnings = append(s.warnings, networkFiles(mounts)...)
	if err := s.launch(ctx, spec, o, stdio); err != nil {
		return nil, err
	}
	if err := s.receiveHandout(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// gather collects what process 1 must know of the host before it loses sight.
func gather(spec Spec, who identity, term *terminal) (orders, error) {
	o := orders{
		Args: spec.Args, Env: who.environment(spec.Env), Dir: spec.Dir, Root: who.root,
		Keep: spec.Keep, HideDirs: spec.HideDirs, HideFiles: spec.HideFiles, RuntimeDir: os.Getenv("XDG_RUNTIME_DIR"), Terminal: -1, Off: spec.off,
	}
	if term != nil {
		o.Terminal = term.fd
	}
	var err error
	if o.Dir == "" {
		if o.Dir, err = os.Getwd(); err != nil {
			return o, fmt.Errorf("working directory: %w", err)
		}
	}
	if o.Sockets, o.LostSockets, err = hostSockets(); err != nil {
		return o, err
	}
	host, err := readIfThere("/etc/resolv.conf")
	if err != nil {
		return o, err
	}
	o.ResolvConf = resolvConf(host, spec.Search)
	if host, err = readIfThere("/etc/nsswitch.conf"); err != nil {
		return o, err
	}
	o.NSSwitch = nsSwitch(host)
	if len(spec.AddHosts) > 0 {
		if host, err = readIfThere("/etc/hosts"); err != nil {
			return o, err
		}
		o.Hosts = hostsFileWith(host, spec.AddHosts)
	}
	for _, path := range spec.RemoveOnParentDeath {
		o.Remove = append(o.Remove, filepath.Base(path))
	}
	return o, nil
}

// inspectStdio refuses directories, through which everything hidden could be
// reached, and names sockets (bypass B76).
func inspectStdio(stdio [3]*os.File) (warnings []string, err error) {
	for i, f := range stdio {
		name := [...]string{"standard input", "standard output", "standard error"}[i]
		st, err := f.Stat()
		if err != nil {
			continue // closed: CMD finds it closed too
		}
		switch {
		case st.IsDir():
			return nil, fmt.Errorf("%s is a directory: hidden files could be reached through it", name)
		case st.Mode().Type() == os.ModeSocket:
			warnings = append(warnings, name+" is a socket: what is written there leaves the sandbox unseen")
		}
	}
	return warnings, nil
}

// launch starts process 1 with its orders.
func (s *Sandbox) launch(ctx context.Context, spec Spec, o orders, stdio [3]*os.File) (err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	files := append(stdio[:], theirs)
	defer func() {
		for _, f := range files[len(stdio):] {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			err = errors.Join(err, s.abandon())
		}
	}()
	conn, err := net.FileConn(ours)
	if err := errors.Join(err, ours.Close()); err != nil {
		return err
	}
	s.conn = conn.(*net.UnixConn)
	written, err := ordersFile(o)
	if err != nil {
		return err
	}
	files = append(files, written)
	for _, path := range spec.RemoveOnParentDeath {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return err
		}
		files = append(files, dir)
	}
	flags := unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if o.Off.IPC {
		flags &^= unix.CLONE_NEWIPC
	}
	if o.Off.Proc {
		flags &^= unix.CLONE_NEWPID
	}
	attr := &syscall.SysProcAttr{
		Cloneflags:  uintptr(flags),
		UidMappings: s.who.uids, GidMappings: s.who.gids, GidMappingsEnableSetgroups: s.who.setgroups,
		Credential: s.who.credential(),
		// Process 1 learns of our death by the end of the socket, and cleans up. It
		// could not while it is stopped, so our death continues it. That this is
		// sent already when the thread that started it ends does no harm.
		Pdeathsig: unix.SIGCONT,
	}
	if !s.who.root {
		attr.AmbientCaps = setupCapabilities
	}
	s.process, err = os.StartProcess("/proc/self/exe", []string{initName}, &os.ProcAttr{Env: []string{}, Files: files, Sys: attr})
	if err != nil {
		return namespaceError(err)
	}
	go s.reap()
	s.stopKill = context.AfterFunc(ctx, s.kill)
	return nil
}

// ordersFile writes the orders to a file that has no name.
func ordersFile(o orders) (*os.File, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("exeat-orders", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "orders")
	if _, err := f.Write(b); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// abandon closes what launch opened before it failed.
func (s *Sandbox) abandon() error {
	if s.conn == nil {
		return nil
	}
	return s.conn.Close()
}

func (s *Sandbox) reap() {
	state, err := s.process.Wait()
	if err == nil {
		s.state = state
	}
	close(s.reaped)
}

// kill ends everything in the sandbox.
func (s *Sandbox) kill() {
	// The only error is that it has ended already.
	if err := s.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.conn.Close()
	}
}

// receiveHandout waits for process 1 to be ready and takes its descriptors.
func (s *Sandbox) receiveHandout(ctx context.Context) error {
	m, files, err := s.receiveFiles()
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("the sandbox's process 1 ended before it was ready: %w", err)
	}
	if m.Kind == kindFailed {
		return s.failure(m)
	}
	if m.Kind != kindReady || len(files) != len(m.Files) {
		return fmt.Errorf("process 1 says %q with %d descriptors for %d names", m.Kind, len(files), len(m.Files))
	}
	s.warnings = append(s.warnings, m.Warnings...)
	var errs error
	for i, f := range files {
		errs = errors.Join(errs, s.take(m.Files[i], f))
	}
	if errs != nil {
		return errs
	}
	var warning string
	if s.kernel, warning, err = newKernel(s.rules, s.ports); err != nil {
		return err
	}
	if warning != "" {
		s.warnings = append(s.warnings, warning)
		return nil
	}
	if err := s.bindLog(); err != nil {
		return fmt.Errorf("listen to what the sandbox's ruleset refuses: %w", err)
	}
	return nil
}

// failure is the error that process 1 reported. A lack of privilege is no
// surprise where AppArmor hands out user namespaces without any.
func (s *Sandbox) failure(m message) error {
	errno := syscall.Errno(m.Errno)
	if (errno == syscall.EPERM || errno == syscall.EACCES) && !s.who.root && restricted() {
		cause, remedy := namespaceObstacle(errno)
		return fmt.Errorf("%w: %s: %s; %s", ErrUserNamespaces, m.Text, cause, remedy)
	}
	return fmt.Errorf("set up the sandbox: %s", m.Text)
}

// restricted says whether user namespaces come without capabilities here.
func restricted() bool {
	value, ok := sysctl("kernel.apparmor_restrict_unprivileged_userns")
	return ok && value == "1"
}

func (s *Sandbox) receiveFiles() (message, []*os.File, error) {
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*32))
	n, oobn, _, _, err := s.conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return message{}, nil, err
	}
	if n == 0 {
		return message{}, nil, errors.New("it closed its socket")
	}
	var files []*os.File
	scms, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return message{}, nil, err
	}
	for _, scm := range scms {
		fds, err := unix.ParseUnixRights(&scm)
		if err != nil {
			return message{}, nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "sandbox"))
		}
	}
	var m message
	if err := json.Unmarshal(buf[:n], &m); err != nil {
		return m, files, err
	}
	return m, files, nil
}

// take turns one descriptor into what it is.
func (s *Sandbox) take(name string, f *os.File) (err error) {
	switch name {
	case fileLog:
		// A file that waits through the runtime's poller, so that a read can end.
		raw := int(f.Fd())
		if err := unix.SetNonblock(raw, true); err != nil {
			return errors.Join(os.NewSyscallError("fcntl(O_NONBLOCK)", err), f.Close())
		}
		dup, err := unix.FcntlInt(uintptr(raw), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return errors.Join(os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err), f.Close())
		}
		s.log = os.NewFile(uintptr(dup), "nflog")
		return f.Close()
	case fileRules:
		s.rules, err = firewall.OpenSocket(f)
		return errors.Join(err, f.Close())
	case fileDNSUDP4, fileDNSUDP6:
		c, err := net.FilePacketConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		udp := c.(*net.UDPConn)
		s.dnsUDP = append(s.dnsUDP, udp)
		s.ports[name] = udp.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		return nil
	}
	l, err := net.FileListener(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	tcp := l.(*net.TCPListener)
	s.ports[name] = tcp.Addr().(*net.TCPAddr).AddrPort().Port()
	switch name {
	case fileTransparent4, fileTransparent6:
		s.transparent = append(s.transparent, tcp)
	case fileExplicit4, fileExplicit6:
		s.explicit = append(s.explicit, tcp)
	case fileDNSTCP4, fileDNSTCP6:
		s.dnsTCP = append(s.dnsTCP, tcp)
	default:
		return errors.Join(fmt.Errorf("descriptor %q is none that we know", name), tcp.Close())
	}
	return nil
}
