//go:build linux

package sidecar

import (
	"os"
	"runtime/debug"
)

// memoryLimit keeps a process of ours under the 256 MiB that docs/limits.md
// promises: what the runtime does not count (the program itself, the kernel's
// copies of our pages) takes the rest.
const memoryLimit = 200 << 20

// LimitMemory makes the garbage collector work harder rather than let this process
// grow past the documented limit. GOMEMLIMIT, where it is set, says otherwise
// (runtime/debug.SetMemoryLimit).
func LimitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
