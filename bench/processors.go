//go:build linux

package main

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// labProcessors are how many the client, the proxy and the origin share: as many as where
// the targets were set, whatever the machine has.
const labProcessors = 2

// affinity is the processors that we may run on.
func affinity() (set unix.CPUSet, err error) {
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return set, fmt.Errorf("ask for our processors: %w", err)
	}
	return set, nil
}

// confine starts this program anew on labProcessors where it may run on more. Threads
// that are there already would keep theirs, and what is executed has the caller's.
func confine() error {
	set, err := affinity()
	if err != nil || set.Count() <= labProcessors {
		return err
	}
	var few unix.CPUSet
	for cpu := 0; few.Count() < labProcessors; cpu++ {
		if set.IsSet(cpu) {
			few.Set(cpu)
		}
	}
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &few); err != nil {
		return fmt.Errorf("use %d processors: %w", labProcessors, err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, os.Environ())
}
