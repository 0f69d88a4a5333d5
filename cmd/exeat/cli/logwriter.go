//go:build !image

package cli

import "io"

// logWriter is where the log goes. The zero value is nowhere.
type logWriter struct {
	io.Writer
	close func() error
}

// Close closes what openLog opened.
func (w logWriter) Close() error {
	if w.close == nil {
		return nil
	}
	return w.close()
}
