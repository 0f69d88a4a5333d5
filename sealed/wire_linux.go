package sealed

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// initName is argument 0 of the process that becomes the sandbox's process 1.
const initName = "exeat-sandbox-init"

// The descriptors that process 1 is started with, after 0 to 2.
const (
	fdControl = 3 // SOCK_SEQPACKET to the engine
	fdOrders  = 4 // memfd with the orders as JSON
	fdRemove  = 5 // one directory for each of orders.Remove
)

// orders are what the engine tells process 1 before anything happens.
type orders struct {
	Args, Env                   []string
	Dir                         string
	Root                        bool // keep a container's capabilities
	Keep                        []string
	HideDirs, HideFiles         []string
	Sockets                     []string // listening path names of the host
	LostSockets                 []string `json:"-"` // bound by relative names, and not found
	RuntimeDir                  string
	ResolvConf, NSSwitch, Hosts string   // contents; empty: leave the host's
	Remove                      []string // names, in the directories passed along
	Terminal                    int      // descriptor of the terminal that CMD takes over, or -1
	Off                         defences
}

// Kinds of message; each is one datagram of JSON.
const (
	kindReady    = "ready"    // init: all is set up; descriptors ride along
	kindFailed   = "failed"   // init: nothing was started, Status and Text say why
	kindStarted  = "started"  // init: CMD runs
	kindStopped  = "stopped"  // init: CMD was stopped by Signal
	kindExited   = "exited"   // init: CMD ended with Status; init follows once that is taken
	kindRelease  = "release"  // engine: start CMD
	kindSignal   = "signal"   // engine: pass Signal on
	kindTaken    = "taken"    // engine: heard that CMD ended, with Status
	kindContinue = "continue" // engine: CMD may go on; with Foreground it has the terminal
)

type message struct {
	Kind       string
	Status     int      `json:",omitempty"`
	Errno      int      `json:",omitempty"`
	Signal     int      `json:",omitempty"`
	Text       string   `json:",omitempty"`
	Foreground bool     `json:",omitempty"`
	Files      []string `json:",omitempty"` // what each passed descriptor is
	Env        []string `json:",omitempty"` // with kindRelease: more of CMD's environment
	Warnings   []string `json:",omitempty"`
}

// The words of message.Files.
const (
	fileTransparent4 = "transparent4"
	fileTransparent6 = "transparent6"
	fileExplicit4    = "explicit4"
	fileExplicit6    = "explicit6"
	fileDNSUDP4      = "dns-udp4"
	fileDNSUDP6      = "dns-udp6"
	fileDNSTCP4      = "dns-tcp4"
	fileDNSTCP6      = "dns-tcp6"
	fileRules        = "nftables"
	fileLog          = "nflog"
)

// maxMessage bounds one datagram either way.
const maxMessage = 64 << 10

// channel is the init's end of the socket, used without Go's poller so that
// nothing of it depends on descriptors that are closed around it.
type channel struct{ fd int }

func (c channel) send(m message, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err = unix.Sendmsg(c.fd, b, oob, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// errParentGone says that the engine closed its end: it is dead.
var errParentGone = errors.New("the engine is gone")

func (c channel) receive() (message, error) {
	buf := make([]byte, maxMessage)
	for {
		n, _, _, _, err := unix.Recvmsg(c.fd, buf, nil, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return message{}, os.NewSyscallError("recvmsg", err)
		case n == 0:
			return message{}, errParentGone
		}
		var m message
		if err := json.Unmarshal(buf[:n], &m); err != nil {
			return message{}, fmt.Errorf("message of the engine: %w", err)
		}
		return m, nil
	}
}
