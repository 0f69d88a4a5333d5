//go:build linux

package sidecar

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// The descriptors of a worker, after the standard ones: what the keeper tells it
// (handover as JSON), a socket to the keeper, and those that handover.Roles lists.
const (
	fdHandover = 3
	fdKeeper   = 4
	fdHeld     = 5
)

// handover is what a worker begins with.
type handover struct {
	Config JoinedConfig
	Own    firewall.Own
	V4, V6 firewall.Ports
	// Links are the links that the keeper has made safe, by index.
	Links    map[int]string
	Features firewall.Features

	Capabilities policy.Capabilities
	Resolvers    resolvers
	Roles        []role

	// State is what is in force, nil where nothing was kept yet. Distrust says why
	// what was kept cannot be trusted: then everything is denied.
	State    *State
	Distrust string
	Names    []attribution.Entry
	// Between says that the worker before may have ended amid a swap: the kernel holds
	// what is in force, or what was about to be.
	Between bool
	// Restart says how the worker before ended; "" is that this is the first.
	Restart string
}

// receiveHandover reads what the keeper left for this process.
func receiveHandover() (handover, []held, *net.UnixConn, error) {
	var h handover
	f := os.NewFile(fdHandover, "handover")
	data, err := io.ReadAll(f)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		return h, nil, nil, fmt.Errorf("this command is started by the keeper alone: %w", err)
	}
	if err := f.Close(); err != nil {
		return h, nil, nil, err
	}
	channel := os.NewFile(fdKeeper, "keeper")
	conn, err := net.FileConn(channel)
	if err != nil {
		return h, nil, nil, fmt.Errorf("the keeper's socket: %w", err)
	}
	keeper, ok := conn.(*net.UnixConn)
	if !ok {
		return h, nil, nil, fmt.Errorf("the keeper's socket is a %T", conn)
	}
	files := make([]held, 0, len(h.Roles))
	for i, r := range h.Roles {
		files = append(files, held{r, os.NewFile(uintptr(fdHeld+i), string(r))})
	}
	return h, files, keeper, channel.Close()
}

// file writes the handover where a worker reads it.
func (h handover) file() (*os.File, error) {
	data, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("exeat-handover", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "handover")
	if _, err := f.Write(data); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// message is what a worker tells its keeper. Those with a Call are answered.
type message struct {
	Call call `json:"call,omitempty"`
	// State is what callPrepare prepares.
	State *State `json:"state,omitempty"`

	// Name, Addrs and TTL are an attribution, which the next worker must know.
	Name  string        `json:"name,omitempty"`
	Addrs []netip.Addr  `json:"addrs,omitempty"`
	TTL   time.Duration `json:"ttl,omitempty"`
}

// call is what a worker wants done.
type call string

// The calls: those of Store.
const (
	callPrepare call = "prepare"
	callCommit  call = "commit"
	callForget  call = "forget"
)

// reply answers a call; an empty Error is success.
type reply struct {
	Error string `json:"error"`
}

// keeperLink is a worker's end of the socket. It is the worker's Store: what is
// in force is kept by the keeper, which outlives the worker.
type keeperLink struct {
	mu   sync.Mutex
	conn *net.UnixConn
	enc  *json.Encoder
	dec  *json.Decoder
}

func newKeeperLink(conn *net.UnixConn) *keeperLink {
	return &keeperLink{conn: conn, enc: json.NewEncoder(conn), dec: json.NewDecoder(conn)}
}

// Prepare implements Store.
func (l *keeperLink) Prepare(s State) (commit func() error, err error) {
	if err := l.call(message{Call: callPrepare, State: &s}); err != nil {
		return nil, err
	}
	return func() error { return l.call(message{Call: callCommit}) }, nil
}

// Forget implements Store.
func (l *keeperLink) Forget() error { return l.call(message{Call: callForget}) }

func (l *keeperLink) call(m message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.enc.Encode(m); err != nil {
		return fmt.Errorf("ask the keeper: %w", err)
	}
	var r reply
	if err := l.dec.Decode(&r); err != nil {
		return fmt.Errorf("ask the keeper: %w", err)
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	return nil
}

// attributed tells the keeper for which name addresses are handed out.
func (l *keeperLink) attributed(name string, addrs []netip.Addr, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.enc.Encode(message{Name: name, Addrs: addrs, TTL: ttl})
}
