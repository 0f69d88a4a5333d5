//go:build linux

package joined

import (
	bits "encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/lab"
)

// Socket options of newer kernels than golang.org/x/sys knows.
const soRcvPriority = 82 // Linux 6.14

// tapped is a frame that a packet socket of the sandbox saw, with the marks that
// SO_RCVMARK and SO_RCVPRIORITY show to whoever has NET_RAW.
type tapped struct {
	link           int
	outgoing       bool
	mark, priority uint32
	frame          []byte
}

func (f tapped) String() string {
	return fmt.Sprintf("link %d, outgoing %v, mark %#x, priority %#x, %x", f.link, f.outgoing, f.mark, f.priority, f.frame[:min(54, len(f.frame))])
}

// tap opens a packet socket on every link of the namespace.
func tap(t *testing.T, ns *lab.Namespace) (fd int) {
	t.Helper()
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	err := ns.In(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	for _, option := range []int{unix.SO_RCVMARK, soRcvPriority} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			t.Logf("this kernel does not show what option %d shows: %v", option, err)
		}
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300_000}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// frames reads what has come to the tap, until nothing comes any more.
func frames(t *testing.T, fd int) (all []tapped) {
	t.Helper()
	frame, control := make([]byte, 2048), make([]byte, 256)
	for len(all) < 100_000 {
		n, controls, _, from, err := unix.Recvmsg(fd, frame, control, 0)
		if err != nil {
			return all
		}
		f := tapped{frame: append([]byte(nil), frame[:n]...)}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok {
			f.link, f.outgoing = ll.Ifindex, ll.Pkttype == unix.PACKET_OUTGOING
		}
		messages, err := unix.ParseSocketControlMessage(control[:controls])
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.SO_MARK:
				f.mark = bits.NativeEndian.Uint32(m.Data)
			case unix.SO_PRIORITY:
				f.priority = bits.NativeEndian.Uint32(m.Data)
			}
		}
		all = append(all, f)
	}
	return all
}

// The secrets that mark a packet as judged must not be seen by a packet tap on
// any link, loopback included (bypass.md section 1): what bears them leaves.
func TestNoTapSeesTheSecrets(t *testing.T) {
	for name, byUID := range map[string]bool{"told apart by control group": false, "told apart by uid and secrets": true} {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, noResolver, "--allow", "pypi.test", "--allow", "db:7", "--allow", "203.0.113.66:9")
			if byUID {
				s.Group = nil
			}
			s.withResolvConf(t, "nameserver 127.0.0.11\noptions ndots:0\n")
			serveEngineDNS(t, s.Namespace, false)
			fd := tap(t, s.Namespace)
			s.Begin(t)
			s.AwaitReady(t)
			status, err := s.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Log(status.OwnTraffic)
			for range 3 {
				s.resolve(t, "db", dns.TypeA, "127.0.0.11:53")
				s.resolve(t, "db", dns.TypeAAAA, "127.0.0.11:53")
				s.resolve(t, "pypi.test", dns.TypeA, "127.0.0.11:53")
				s.echoes(t, "203.0.113.7:7")
				if _, err := s.try("udp", "203.0.113.66:9"); err != nil {
					t.Error(err)
				}
				if conn, err := s.Dial("tcp", "203.0.113.10:443"); err == nil {
					conn.Close()
				}
				time.Sleep(100 * time.Millisecond)
			}
			if _, err := s.Probe(t.Context(), probeRequest()); err != nil {
				t.Error(err)
			}
			seen := 0
			for _, f := range frames(t, fd) {
				if f.link != 1 && f.mark != 0 && f.priority == 7 {
					continue // a report of groups from before the start
				}
				seen++
				if f.mark != 0 && f.mark != publicProbeMark || f.priority > maxPriority {
					t.Errorf("%v", f)
				}
			}
			if seen == 0 {
				t.Error("the tap saw nothing at all")
			}
		})
	}
}

// publicProbeMark is no secret, and priorities up to maxPriority are the kernel's
// own (TC_PRIO_MAX).
const (
	publicProbeMark = 0x65780003
	maxPriority     = 15
)

func probeRequest() api.ProbeRequest { return api.ProbeRequest{} }
