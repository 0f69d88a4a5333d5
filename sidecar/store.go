//go:build linux

package sidecar

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// The state file and the one that it is renamed from; what names are asked of.
const (
	stateFile     = "state.json"
	stateFileNext = "state.json.next"
	resolversFile = "resolvers.json"
	// stateVersion is what this program writes; it reads no other.
	stateVersion = 1
	// maxState bounds what is read: a policy of the largest legal size, the phases,
	// and their envelope.
	maxState = 256 << 20
)

// ErrNoState says that nothing was ever kept.
var ErrNoState = errors.New("no state was kept")

// FileStore keeps the state in one file of a directory, replaced by rename after
// an fsync, so that the file is always one whole state or another (rename(2)).
// The directory stays open: privileges may be dropped after OpenStore.
type FileStore struct{ dir *os.Root }

// OpenStore opens the directory, which must exist.
func OpenStore(dir string) (*FileStore, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	return &FileStore{root}, nil
}

// Close closes the directory.
func (s *FileStore) Close() error { return s.dir.Close() }

// envelope is the file. Sum is over the bytes of State, which tells a torn or
// edited file from a whole one.
type envelope struct {
	Version int             `json:"version"`
	Sum     string          `json:"sha256"`
	State   json.RawMessage `json:"state"`
}

// Load reads what was kept last. Any error but ErrNoState means that something
// was kept and can't be trusted: deny everything.
func (s *FileStore) Load() (State, error) {
	info, err := s.dir.Stat(stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, ErrNoState
	}
	if err != nil {
		return State{}, fmt.Errorf("read the state: %w", err)
	}
	if info.Size() > maxState {
		return State{}, fmt.Errorf("read the state: %d bytes, more than any state has", info.Size())
	}
	data, err := s.dir.ReadFile(stateFile)
	if err != nil {
		return State{}, fmt.Errorf("read the state: %w", err)
	}
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return State{}, fmt.Errorf("the state file is torn or was edited: %w", err)
	}
	if e.Version != stateVersion {
		return State{}, fmt.Errorf("the state file has version %d, this program knows %d", e.Version, stateVersion)
	}
	if sumOf(e.State) != e.Sum {
		return State{}, errors.New("the state file is torn or was edited: its checksum differs")
	}
	var state State
	if err := json.Unmarshal(e.State, &state); err != nil {
		return State{}, fmt.Errorf("the state file holds no legal state: %w", err)
	}
	if state.Generation == 0 {
		return State{}, errors.New("the state file holds no generation")
	}
	return state, nil
}

// Prepare writes the state aside; commit puts it in the file's place.
func (s *FileStore) Prepare(state State) (commit func() error, err error) {
	data, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	file, err := json.Marshal(envelope{Version: stateVersion, Sum: sumOf(data), State: data})
	if err != nil {
		return nil, err
	}
	if err := s.write(stateFileNext, file); err != nil {
		return nil, err
	}
	return func() error { return s.rename(stateFileNext, stateFile) }, nil
}

// keepResolvers keeps what names are asked of, beside the state.
func (s *FileStore) keepResolvers(r resolvers) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := s.write(resolversFile+".next", data); err != nil {
		return err
	}
	return s.rename(resolversFile+".next", resolversFile)
}

// loadResolvers reads what keepResolvers kept; ErrNoState where that was nothing.
func (s *FileStore) loadResolvers() (resolvers, error) {
	var r resolvers
	data, err := s.dir.ReadFile(resolversFile)
	if errors.Is(err, fs.ErrNotExist) {
		return r, ErrNoState
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

func (s *FileStore) rename(from, to string) error {
	if err := s.dir.Rename(from, to); err != nil {
		return err
	}
	return s.sync()
}

// Forget removes what was kept, so that a restart denies rather than go back to it.
func (s *FileStore) Forget() error {
	err := s.dir.Remove(stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, s.sync())
}

func (s *FileStore) write(name string, data []byte) error {
	f, err := s.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// sync makes a rename or removal last (fsync(2) on the directory).
func (s *FileStore) sync() error {
	d, err := s.dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
