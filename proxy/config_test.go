//go:build linux

package proxy

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestConnectionsLeaveDescriptorsToTheRest(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}()
	for limit, want := range map[uint64]int{256: 42, 1024: 170, 4096: 682, 20000: 5984, 65536: 16384, 1 << 20: 16384} {
		if limit > old.Max {
			t.Logf("%d is more than we may have", limit)
			continue
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}); err != nil {
			t.Fatal(err)
		}
		var c Config
		c.Defaults()
		if c.Limits.MaxConns != want {
			t.Errorf("of %d descriptors: %d connections, want %d", limit, c.Limits.MaxConns, want)
		}
	}
}
