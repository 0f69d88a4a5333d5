//go:build linux

package sealed

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/firewall"
)

// engine serves a sandbox as the real one would, in the plainest way: a
// redirected connection is told where it was meant to go.
type engine struct {
	*Sandbox
	out *os.File

	mu      sync.Mutex
	refused []Refused
}

// begin starts a sandbox with the spec, its output going to a file.
func begin(t *testing.T, spec Spec) *engine {
	t.Helper()
	require.UserNamespaces(t)
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	spec.Stdout, spec.Stderr = out, out
	s, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{Sandbox: s, out: out}
	var wg sync.WaitGroup
	for i, l := range slices.Concat(s.TCP(), s.Explicit()) {
		explicit := i >= len(s.TCP())
		wg.Go(func() { greet(l, explicit) })
	}
	udp, tcp := s.DNS()
	for _, c := range udp {
		wg.Go(func() { answer(c) })
	}
	for _, l := range tcp {
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(c, "resolver")
				c.Close()
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		if err := s.Refusals(ctx, func(r Refused) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.refused = append(e.refused, r)
		}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		out.Close()
	})
	return e
}

// finish runs the command and returns what it printed.
func (e *engine) finish(t *testing.T) string {
	t.Helper()
	if err := e.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Wait(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(e.out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func greet(l *net.TCPListener, explicit bool) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		if explicit {
			fmt.Fprint(c, "proxy")
		} else {
			fmt.Fprint(c, originalDestination(c))
		}
		c.Close()
	}
}

func answer(c *net.UDPConn) {
	b := make([]byte, 512)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		c.WriteToUDPAddrPort(append([]byte("answer to "), b[:n]...), from)
	}
}

// originalDestination asks the kernel where a redirected connection was meant to go.
func originalDestination(c *net.TCPConn) netip.AddrPort {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}
	}
	b := make([]byte, unix.SizeofSockaddrInet6)
	size := uint32(len(b))
	level := uintptr(unix.SOL_IP)
	if netip.MustParseAddrPort(c.LocalAddr().String()).Addr().Is6() {
		level = unix.SOL_IPV6
	}
	const original = 80 // SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST
	raw.Control(func(fd uintptr) {
		unix.Syscall6(unix.SYS_GETSOCKOPT, fd, level, original, uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	})
	port := binary.BigEndian.Uint16(b[2:])
	if level == unix.SOL_IP {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port)
}

func TestEverythingComesToTheListenersOrIsRefused(t *testing.T) {
	for _, c := range []struct {
		what  string
		spec  Spec
		want  string
		quick bool // refused within 50 ms
	}{
		{"TCP is redirected, and says where it was going", probe("tcp", "203.0.113.5:8443"), "got 203.0.113.5:8443", false},
		{"so is TCP over IPv6", probe("tcp", "[2001:db8::5]:22"), "got [2001:db8::5]:22", false},
		{"so is TCP to a private address", probe("tcp", "10.0.0.1:80"), "got 10.0.0.1:80", false},
		{"and to the metadata service", probe("tcp", "169.254.169.254:80"), "got 169.254.169.254:80", false},
		{"DNS comes to the resolver", probe("udp", "203.0.113.53:53"), "got answer to question", false},
		{"over IPv6 too", probe("udp", "[2001:db8::53]:53"), "got answer to question", false},
		{"and from the address in resolv.conf", probe("udp", "198.18.0.1:53"), "got answer to question", false},
		{"and from loopback", probe("udp", "127.0.0.53:53"), "got answer to question", false},
		{"and over TCP", probe("tcp", "203.0.113.53:53"), "got resolver", false},
		{"and over TCP and IPv6", probe("tcp", "[2001:db8::53]:53"), "got resolver", false},
		{"QUIC is refused at once", probe("udp", "203.0.113.5:443"), "operation not permitted", true},
		{"over IPv6 too", probe("udp", "[2001:db8::5]:443"), "operation not permitted", true},
		{"multicast is refused", probe("udp", "224.0.0.251:5353"), "operation not permitted", true},
		{"the agent's own servers are its own", probe("loopback", "127.0.0.1", "::1", "198.18.0.1", AddressIPv6.String(), "127.8.9.10"), "done", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := begin(t, c.spec).finish(t)
			contains(t, got, c.want)
			if c.quick {
				quick(t, got)
			}
		})
	}
}

// quick checks that a probe was refused at once: within ten times the 50 ms that are
// promised, for others use the machine too.
func quick(t *testing.T, out string) {
	t.Helper()
	m := regexp.MustCompile(`refused in (\d+) ms`).FindStringSubmatch(out)
	if m == nil {
		t.Errorf("not refused: %q", out)
		return
	}
	if ms, err := strconv.Atoi(m[1]); err != nil || ms >= 500 {
		t.Errorf("refused after %s ms", m[1])
	}
}

func TestPingIsRefusedAtOnce(t *testing.T) {
	// The group may be allowed ping sockets by the host or not: either way nothing leaves.
	got := begin(t, probe("ping", "203.0.113.5")).finish(t)
	quick(t, got)
}

func TestTheExplicitProxyIsThere(t *testing.T) {
	spec := shell(`exec "$0" "$PROXY"`)
	spec.Args = append(spec.Args, os.Getenv(binaryVariable))
	spec.Env = append(os.Environ(), probeVariable+"=tcp")
	// Its port is known only once the sandbox stands, so the command is told by a file.
	name := t.TempDir() + "/port"
	spec.Args[2] = `exec "$0" "$(cat ` + name + `)"`
	e := begin(t, spec)
	if err := os.WriteFile(name, []byte(e.ProxyAddr()), 0o644); err != nil {
		t.Fatal(err)
	}
	contains(t, e.finish(t), "got proxy")
}

// TestTheOtherListenersCannotBeDialledDirectly is bypass row B37.
func TestTheOtherListenersCannotBeDialledDirectly(t *testing.T) {
	name := t.TempDir() + "/ports"
	spec := probe("tcp")
	spec.Args = []string{"/bin/sh", "-c", `exec "$0" $(cat ` + name + `)`, os.Getenv(binaryVariable)}
	e := begin(t, spec)
	_, dns := e.DNS()
	var addrs []string
	for _, l := range slices.Concat(e.TCP(), dns) {
		a := netip.MustParseAddrPort(l.Addr().String())
		addrs = append(addrs, a.String())
		if a.Addr().Is4() {
			addrs = append(addrs, netip.AddrPortFrom(AddressIPv4, a.Port()).String())
		}
	}
	if err := os.WriteFile(name, []byte(strings.Join(addrs, " ")), 0o644); err != nil {
		t.Fatal(err)
	}
	got := e.finish(t)
	if n := strings.Count(got, "connection refused"); n != len(addrs) || strings.Contains(got, "got") {
		t.Errorf("%d of %d refused: %s", n, len(addrs), got)
	}
	e.wantRefused(t, firewall.SealedListener, unix.IPPROTO_TCP, addrs[0])
}

// wantRefused checks that a refusal was told.
func (e *engine) wantRefused(t *testing.T, why string, protocol uint8, to string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		e.mu.Lock()
		told := slices.ContainsFunc(e.refused, func(r Refused) bool {
			return r.Why == why && r.Protocol == protocol && r.Destination.String() == to && r.Source.IsValid() && r.Lost == 0
		})
		e.mu.Unlock()
		if told {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("no refusal %q of %s among %+v", why, to, e.refused)
}

func TestWhatIsRefusedIsTold(t *testing.T) {
	e := begin(t, probe("udp", "[2001:db8::5]:443"))
	e.finish(t)
	e.wantRefused(t, firewall.SealedPacket, unix.IPPROTO_UDP, "[2001:db8::5]:443")
}

func TestWhatWaitsWhenTheListeningEndsIsToldToo(t *testing.T) {
	require.UserNamespaces(t)
	s, err := Start(t.Context(), probe("udp", "203.0.113.5:443"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var got []Refused
	if err := s.Refusals(ctx, func(r Refused) { got = append(got, r) }); err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 || got[0].Destination != netip.MustParseAddrPort("203.0.113.5:443") {
		t.Errorf("%+v", got)
	}
}
