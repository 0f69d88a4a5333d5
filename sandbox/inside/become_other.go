//go:build !linux

package inside

import "errors"

var errLinux = errors.New("the sidecar runs on Linux alone")

func become([]string) error { return errLinux }

func renounce() error { return errLinux }

func again(...string) error { return errLinux }
