package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
)

// File is a log file that is set aside when it is full: path becomes path.1,
// path.1 becomes path.2, and so on. It is a hundred lines of our own rather than
// a library because a torn line must be taken back (a full disk must not leave
// one that does not parse) and because nothing may be deleted but these names.
type File struct {
	path string
	max  int64
	keep int

	mu   sync.Mutex
	f    *os.File
	size int64
	// regular is false for a pipe or a terminal, which is never set aside.
	regular bool
}

// OpenFile appends to the file at path, made with mode 0600. It is set aside
// before it grows over maxBytes, and keep older files stay (at least 1).
func OpenFile(path string, maxBytes int64, keep int) (*File, error) {
	file := &File{path: path, max: maxBytes, keep: max(keep, 1)}
	if err := file.open(); err != nil {
		return nil, err
	}
	return file, nil
}

func (w *File) open() error {
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("audit: opening the log file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("audit: opening the log file: %w", err), f.Close())
	}
	w.f, w.size, w.regular = f, info.Size(), info.Mode().IsRegular()
	return nil
}

// Write appends one line, whole or not at all. When the file can't be set aside
// the line is written nevertheless, and the error says why.
func (w *File) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var rotateErr error
	if w.regular && w.size > 0 && w.size+int64(len(line)) > w.max {
		rotateErr = w.rotate()
	}
	n, err := w.f.Write(line)
	if err != nil && n > 0 && w.regular {
		if truncErr := w.f.Truncate(w.size); truncErr != nil {
			err = errors.Join(err, truncErr)
		} else {
			n = 0
		}
	}
	w.size += int64(n)
	return n, errors.Join(rotateErr, err)
}

// rotate sets the file aside and opens a new one; on failure the old one stays
// in use.
func (w *File) rotate() error {
	for i := w.keep - 1; i >= 1; i-- {
		err := os.Rename(w.numbered(i), w.numbered(i+1))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("audit: setting the log file aside: %w", err)
		}
	}
	if err := os.Rename(w.path, w.numbered(1)); err != nil {
		return fmt.Errorf("audit: setting the log file aside: %w", err)
	}
	old := w.f
	if err := w.open(); err != nil {
		return err // old is still open, and is path.1 now
	}
	if err := old.Close(); err != nil {
		return fmt.Errorf("audit: closing the log file set aside: %w", err)
	}
	return nil
}

func (w *File) numbered(i int) string { return w.path + "." + strconv.Itoa(i) }

// Close syncs and closes the file.
func (w *File) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var syncErr error
	if w.regular {
		syncErr = w.f.Sync()
	}
	return errors.Join(syncErr, w.f.Close())
}
