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
	if out := l.agent("send", allowed4+":8443", "x"); !strings.Contains(out, "done") {
		t.Errorf("the agent to what is allowed: %s", out)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
