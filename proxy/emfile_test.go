//go:build linux

package proxy

import (
	"bufio"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// TestOutOfDescriptors lowers the limit to what is open, so that accept fails:
// clients are shed at once, and served again afterwards (bypass B40).
func TestOutOfDescriptors(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.origin("203.0.113.10:22", greeter)
	at := r.transparent("203.0.113.10:22")
	greet := func() error {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return err
		}
		_, err = bufio.NewReader(c).ReadString('\n')
		return err
	}
	if err := greet(); err != nil {
		t.Fatal(err)
	}
	// Until it is over it may still take and give back descriptors.
	r.log.find(t, "of its end", func(e audit.Event) bool { return e.Kind == audit.KindFlow })
	// The client's socket is made before the limit falls.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	to, err := net.ResolveTCPAddr("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	// A limit at the lowest free descriptor leaves none.
	low, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(low); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(low), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
	}
	sa := &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte{127, 0, 0, 1}}
	err = unix.Connect(fd, sa)
	if err == nil {
		_, err = unix.Read(fd, make([]byte, 1))
	}
	restore()
	if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("client without a descriptor for it: %v, want a reset", err)
	}
	r.log.find(t, "limit", func(e audit.Event) bool { return e.Reason == policy.ReasonLimit && e.Kind == audit.KindDecision })
	if err := greet(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
