//go:build linux

package sidecar

import (
	"bufio"
	"errors"
	"io"
)

// copyLines copies whole lines until the end of r: of one that its writer died in
// nothing is written. It reads on when writing fails, lest the writer hang.
func copyLines(w io.Writer, r io.Reader) error {
	var failed error
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				return failed
			}
			return errors.Join(failed, err)
		}
		if _, err := w.Write(line); err != nil {
			failed = err
		}
	}
}
