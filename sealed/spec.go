package sealed

import (
	"errors"
	"net/netip"
	"os"
)

// Spec says what to run and what of the host it keeps. Only Args is required.
type Spec struct {
	// Args are the command and its arguments. A name without a slash is looked up
	// in the PATH of Env.
	Args []string
	// Dir is the working directory; empty means ours. It must be reachable inside.
	Dir string
	// Env is the environment; nil means ours (with HOME, USER and LOGNAME of the
	// user that root drops to).
	Env []string
	// Stdin, Stdout and Stderr are the command's own descriptors, passed on as they
	// are; nil means ours.
	Stdin, Stdout, Stderr *os.File

	// AsRoot keeps root as root, with the capabilities of a container. Otherwise
	// root drops to the user who called sudo, if one did. It means nothing to an
	// ordinary user.
	AsRoot bool

	// Keep are paths that stay as they are on the host: sockets that would be
	// masked, and files or directories below those that are hidden.
	Keep []string
	// HideDirs are directories that are empty inside, beside /run, /var/run and
	// $XDG_RUNTIME_DIR: the one with the control sockets belongs here.
	HideDirs []string
	// HideFiles are files that are empty and shut inside, where they exist: the log,
	// which CMD's user may write to.
	HideFiles []string
	// Search are the search domains of resolv.conf; nil means the host's.
	Search []string
	// AddHosts are lines of /etc/hosts beside the host's own.
	AddHosts []HostEntry
	// RemoveOnParentDeath are files that are removed when we die without having
	// had the time, by the command's own user: the control socket.
	RemoveOnParentDeath []string

	// off switches single defences off, to show in a test that what they stop is
	// real.
	off defences
}

// HostEntry is one line of /etc/hosts.
type HostEntry struct {
	Name  string
	Addrs []netip.Addr
}

// defences are the parts that tests can take away one at a time.
type defences struct {
	Run, Sockets, Seccomp, Proc, Descriptors, NSSwitch, RootPaths, Dumpable, IPC, Capabilities bool
}

// Addresses of the sandbox: the source of everything that leaves its sockets,
// and the name server in its resolv.conf. 198.18.0.0/15 is for benchmarks (RFC
// 2544) and routed nowhere; the other is a unique local address (RFC 4193).
var (
	AddressIPv4 = netip.AddrFrom4([4]byte{198, 18, 0, 1})
	AddressIPv6 = netip.MustParseAddr("fd65:7865:6174::1")
)

// ErrUserNamespaces says that this process may not make the namespaces that it
// needs. The message names the setting in the way, and the remedies.
var ErrUserNamespaces = errors.New("user namespaces are not available")

// ErrUnsupported is the answer of Start on systems without Linux namespaces.
var ErrUnsupported = errors.New("sealed sandboxes need Linux")

// The statuses of a command that did not run, as env(1) and timeout(1) have them.
const (
	StatusRefused       = 125
	StatusNotExecutable = 126
	StatusNotFound      = 127
)

// ExecError says that the sandbox stands and the command could not be started
// in it. Status is 125, 126 or 127.
type ExecError struct {
	Status  int
	Message string
}

// Error gives the message.
func (e *ExecError) Error() string { return e.Message }
