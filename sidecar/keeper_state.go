//go:build linux

package sidecar

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/exeat/exeat/attribution"
)

// memory is what the keeper remembers for the next worker, and on disk where
// there is a state directory.
type memory struct {
	disk  *FileStore // nil is none
	names *attribution.Table

	mu       sync.Mutex
	state    *State
	distrust string
	prepared *State
	began    bool // a worker of ours has put something in force
	puts     int  // how often one has
	commit   func() error
}

// remember reads what was kept. What cannot be read is no error but distrust.
func remember(disk *FileStore) *memory {
	m := &memory{disk: disk, names: attribution.New(attribution.Grace, nil)}
	if disk == nil {
		return m
	}
	state, err := disk.Load()
	switch {
	case err == nil:
		m.state = &state
	case !errors.Is(err, ErrNoState):
		m.distrust = err.Error()
	}
	return m
}

// recall gives what is in force; between says that a worker has prepared something
// else and not said that it was committed.
func (m *memory) recall() (state *State, distrust string, names []attribution.Entry, between bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := range m.names.All() {
		names = append(names, e)
	}
	return m.state, m.distrust, names, m.prepared != nil
}

// commits is how often workers have put something in force since we started.
func (m *memory) commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.puts
}

// cameUp says whether a worker has put anything in force since we started.
func (m *memory) cameUp() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.began
}

// serve carries out what one worker asks until it is gone.
func (m *memory) serve(conn *net.UnixConn) error {
	dec, enc := json.NewDecoder(conn), json.NewEncoder(conn)
	for {
		var ask message
		if err := dec.Decode(&ask); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("hear the worker: %w", err)
		}
		if ask.Call == "" {
			m.names.Add(ask.Name, ask.Addrs, min(ask.TTL, 24*time.Hour))
			continue
		}
		var answer reply
		if err := m.carryOut(ask); err != nil {
			answer.Error = err.Error()
		}
		if err := enc.Encode(answer); err != nil {
			return nil // it died asking
		}
	}
}

func (m *memory) carryOut(ask message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch ask.Call {
	case callPrepare:
		return m.prepareLocked(ask.State)
	case callCommit:
		return m.commitLocked()
	case callForget:
		m.state, m.prepared, m.commit = nil, nil, nil
		m.distrust = "what was in force could not be kept"
		if m.disk != nil {
			return m.disk.Forget()
		}
		return nil
	}
	return fmt.Errorf("no call %q", ask.Call)
}

func (m *memory) prepareLocked(s *State) error {
	if s == nil {
		return errors.New("prepare without a state")
	}
	commit := func() error { return nil }
	if m.disk != nil {
		var err error
		if commit, err = m.disk.Prepare(*s); err != nil {
			return err
		}
	}
	m.prepared, m.commit = s, commit
	return nil
}

func (m *memory) commitLocked() error {
	if m.prepared == nil {
		return errors.New("commit of what was not prepared")
	}
	if err := m.commit(); err != nil {
		return err
	}
	m.state, m.distrust, m.began = m.prepared, "", true
	m.puts++
	m.prepared, m.commit = nil, nil
	return nil
}
