package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/policy"
)

const fallbackUID = 61234

// sendAs sends a datagram from a socket of a uid, with the secrets or without,
// and waits for the echo.
func sendAs(t *testing.T, uid int, secrets *Secrets, address string) error {
	t.Helper()
	return sendFromAs(t, "", uid, secrets, address)
}

// sendFromAs is sendAs from an address, "" for any.
func sendFromAs(t *testing.T, from string, uid int, secrets *Secrets, address string) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread's uid is spoilt
		done <- func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := unix.Close(fd); err != nil {
				return err
			}
			// The uid of a socket is the file system uid of who opens it.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0); errno != 0 {
				return errno
			}
			d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
				var err error
				return errors.Join(c.Control(func(fd uintptr) {
					if secrets != nil {
						err = secrets.SetOnSocket(int(fd))
					}
				}), err)
			}}
			if from != "" {
				d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
			}
			c, err := d.DialContext(context.Background(), "udp", address)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
			_, err = c.Read(make([]byte, 16))
			return err
		}()
	}()
	return <-done
}

func TestWithoutControlGroupsOurUIDAndSecretsTellUsApart(t *testing.T) {
	if !grouped(t) {
		return
	}
	if os.Getuid() != 0 {
		require.Skip(t, "needs a second uid")
	}
	l := newLab(t)
	l.enforce(`"no-network"`, func(in *JoinedInput) {
		in.Own = Own{UID: fallbackUID, Bears: NewSecrets(ProbeMark)}
		in.Policy = compiled(t, fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s"]}`, allowed4))
	})
	var attacks atomic.Int32
	var current atomic.Pointer[policy.Compiled]
	log, err := OpenLog(LogConfig{Group: l.in.LogGroup, Policy: &current, Log: &recorder{}, Names: namesOf{}, Attack: func() { attacks.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- log.Run(ctx) }()
	wrong := NewSecrets(0)
	to := denied4 + ":8443"
	if err := sendAs(t, fallbackUID, &l.in.Own.Bears, to); err != nil {
		t.Errorf("our uid with the secrets: %v", err)
	}
	for who, err := range map[string]error{
		"another uid with the secrets":      sendAs(t, 4711, &l.in.Own.Bears, to),
		"our uid with what packets bear":    sendAs(t, fallbackUID, &l.in.Secrets, to),
		"our uid with other secrets":        sendAs(t, fallbackUID, &wrong, to),
		"our uid without secrets":           sendAs(t, fallbackUID, nil, to),
		"a program of the sandbox, as root": sendAs(t, 0, nil, to),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v, want EPERM", who, err)
		}
	}
	waitFor(t, func() bool { return attacks.Load() == 3 })
	// Whether a guess is right is not told on lo either: what our sockets may do from
	// the engine's address is an attack for who does not bear their secrets.
	if err := sendFromAs(t, "127.0.0.11", fallbackUID, &wrong, "127.0.0.1:9"); !errors.Is(err, unix.EPERM) {
		t.Errorf("our uid with other secrets, from the engine's address: %v, want EPERM", err)
	}
	waitFor(t, func() bool { return attacks.Load() == 4 })
	if out := l.agent("send", allowed4+":8443", "x"); !strings.Contains(out, "done") {
		t.Errorf("the agent to what is allowed: %s", out)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAGuessOfOurSocketsMarkTellsNothing: who may mark sockets sends datagrams to one
// of its own, to see at which mark they vanish.
func TestAGuessOfOurSocketsMarkTellsNothing(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	own := Own{UID: fallbackUID, Bears: NewSecrets(ProbeMark)}
	l.enforce(`"no-network"`, func(in *JoinedInput) { in.Own = own })
	marked := func(mark uint32) net.PacketConn {
		listen := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			return errors.Join(c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
			}), err)
		}}
		conn, err := listen.ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	arrives := func(at net.PacketConn) bool {
		plain := marked(0)
		for _, to := range []net.PacketConn{at, plain} { // the second says when the first would have come
			if _, err := plain.WriteTo([]byte("guess"), to.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
		buf := make([]byte, 16)
		if err := plain.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := plain.ReadFrom(buf); err != nil {
			t.Fatalf("a socket without a mark: %v", err)
		}
		if err := at.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, _, err := at.ReadFrom(buf)
		return err == nil
	}
	right, wrong := arrives(marked(own.Bears.Mark)), arrives(marked(own.Bears.Mark+1))
	if right || wrong {
		t.Errorf("to a socket with our mark a datagram comes: %v; with another: %v; want neither, for the difference tells the mark", right, wrong)
	}
}
