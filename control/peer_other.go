//go:build !linux

package control

import (
	"errors"
	"net"
)

// errNoPeers refuses everybody: sandboxes run on Linux only.
var errNoPeers = errors.New("peer credentials can be read on Linux only")

func peerOf(*net.UnixConn) (Peer, error) { return Peer{pidfd: -1}, errNoPeers }

func (p *Peer) close() {}

// SameNamespaces fails: there are no namespaces here.
func SameNamespaces() (func(Peer) error, error) { return nil, errNoPeers }

// CheckServer fails: local engines run on Linux only.
func CheckServer(net.Conn) error { return errNoPeers }
