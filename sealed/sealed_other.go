//go:build !linux

package sealed

import (
	"context"
	"net"
	"syscall"
)

// Sandbox cannot be had on this system.
type Sandbox struct{}

// Init does nothing here.
func Init() {}

// Start says that sealed sandboxes need Linux.
func Start(context.Context, Spec) (*Sandbox, error) { return nil, ErrUnsupported }

// Undumpable does nothing here.
func Undumpable() error { return nil }

// TCP gives nothing here.
func (s *Sandbox) TCP() []*net.TCPListener { return nil }

// Explicit gives nothing here.
func (s *Sandbox) Explicit() []*net.TCPListener { return nil }

// DNS gives nothing here.
func (s *Sandbox) DNS() ([]*net.UDPConn, []*net.TCPListener) { return nil, nil }

// Warnings gives nothing here.
func (s *Sandbox) Warnings() []string { return nil }

// Root is false here.
func (s *Sandbox) Root() bool { return false }

// UID is of no use here.
func (s *Sandbox) UID() int { return -1 }

// GID is of no use here.
func (s *Sandbox) GID() int { return -1 }

// Pid is of no use here.
func (s *Sandbox) Pid() int { return -1 }

// ProxyAddr is empty here.
func (s *Sandbox) ProxyAddr() string { return "" }

// Release says that sealed sandboxes need Linux.
func (s *Sandbox) Release(...string) error { return ErrUnsupported }

// Wait says that sealed sandboxes need Linux.
func (s *Sandbox) Wait() (int, error) { return StatusRefused, ErrUnsupported }

// Signal says that sealed sandboxes need Linux.
func (s *Sandbox) Signal(syscall.Signal) error { return ErrUnsupported }

// RelaySignals does nothing here.
func (s *Sandbox) RelaySignals() (stop func()) { return func() {} }

// Close does nothing here.
func (s *Sandbox) Close() error { return nil }
