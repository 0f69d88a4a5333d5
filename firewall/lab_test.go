package firewall

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lab is a sandbox (the namespace of the test) and, behind a veth pair, a far
// side that counts what gets there.
type lab struct {
	t      testing.TB
	far    int // descriptor of the far namespace
	tid    int // a thread in it
	group  *os.File
	in     JoinedInput
	kernel *Kernel
	fw     *Firewall

	mu     sync.Mutex
	frames [][]byte
	// redirected are the first bytes of what came to our listeners.
	redirected []string
}

// The addresses of the lab. Documentation ranges count as public.
const (
	sandboxV4, sandboxV6 = "198.51.100.2", "2001:db8::2"
	gateway4, gateway6   = "198.51.100.1", "2001:db8::1"
	allowed4, allowed6   = "203.0.113.10", "2001:db8:a::10"
	denied4, denied6     = "203.0.113.66", "2001:db8:a::66"
)

func newLab(t testing.TB) *lab {
	l := &lab{t: t}
	group, err := os.Open(os.Getenv(agentGroup))
	if err != nil {
		t.Fatal(err)
	}
	l.group = group
	var end func()
	l.far, l.tid, end = otherNamespace(t)
	t.Cleanup(end)
	sh(t, fmt.Sprintf(`
ip link set lo up
ip link add eth0 type veth peer name far0 netns %d
ip addr add %s/24 dev eth0; ip -6 addr add %s/64 dev eth0 nodad
ip link set eth0 up`, l.tid, sandboxV4, sandboxV6))
	l.farSh(fmt.Sprintf(`
ip link set lo up
ip addr add %s/24 dev far0; ip -6 addr add %s/64 dev far0 nodad
ip link set far0 up
for a in %s %s; do ip addr add $a/32 dev lo; done
for a in %s %s; do ip -6 addr add $a/128 dev lo nodad; done
sysctl -qw net.ipv4.conf.all.accept_source_route=1 net.ipv4.conf.far0.accept_source_route=1 net.ipv4.icmp_echo_ignore_broadcasts=0`,
		gateway4, gateway6, allowed4, denied4, allowed6, denied6))
	sh(t, fmt.Sprintf("ip route add default via %s; ip -6 route add default via %s", gateway4, gateway6))
	l.capture()
	sh(t, fmt.Sprintf("for i in 1 2 3 4 5 6 7 8 9 10; do ping -6 -c1 -W1 %s >/dev/null && break || sleep 0.1; done; ping -c1 -W1 %s >/dev/null", denied6, denied4))
	for _, port := range []int{22, 53, 80, 443, 8443} {
		l.serveFar(port)
	}
	return l
}

// farSh runs a shell line on the far side.
func (l *lab) farSh(line string) {
	l.t.Helper()
	err := inNamespace(l.far, func() error {
		out, err := exec.Command("/bin/sh", "-ec", line).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// capture keeps every frame that arrives at the far end of the link.
func (l *lab) capture() {
	fd := -1
	err := inNamespace(l.far, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			l.mu.Lock()
			l.frames = append(l.frames, bytes.Clone(buf[:n]))
			l.mu.Unlock()
		}
	}()
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// arrived says how many frames with the marker the far side has seen, after
// they have had time to arrive.
func (l *lab) arrived(marker string) int {
	for deadline := time.Now().Add(150 * time.Millisecond); ; time.Sleep(5 * time.Millisecond) {
		if n := l.count(marker); n > 0 || time.Now().After(deadline) {
			return n
		}
	}
}

func (l *lab) count(marker string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, f := range l.frames {
		n += bytes.Count(f, []byte(marker))
	}
	return n
}

// settle waits until what is on its way has arrived.
func (l *lab) settle() { time.Sleep(200 * time.Millisecond) }

// serveFar answers TCP and UDP on a port of every far address by echo.
func (l *lab) serveFar(port int) {
	for _, a := range []string{allowed4, denied4, allowed6, denied6} {
		l.serveFarAt(net.JoinHostPort(a, fmt.Sprint(port)))
	}
}

func (l *lab) serveFarAt(address string) {
	var ln net.Listener
	var pc net.PacketConn
	err := inNamespace(l.far, func() (err error) {
		if ln, err = net.Listen("tcp", address); err == nil {
			pc, err = net.ListenPacket("udp", address)
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if _, err := pc.WriteTo(buf[:n], from); err != nil {
				return
			}
		}
	}()
}

// enforce binds our listeners and puts a policy in force.
func (l *lab) enforce(document string, change ...func(*JoinedInput)) {
	l.t.Helper()
	own, err := ProbeCgroup()
	if err != nil {
		l.t.Fatal(err)
	}
	ports := Ports{TCP: l.listen("tcp", "127.0.0.1:0"), DNS: l.listen("udp", "127.0.0.1:0")}
	ports6 := Ports{TCP: l.listen("tcp", "[::1]:0"), DNS: l.listen("udp", "[::1]:0")}
	l.in = JoinedInput{
		V4: ports, V6: ports6, Own: own, Secrets: NewSecrets(ProbeMark), ProbeMark: ProbeMark,
		Policy: compiled(l.t, document), Links: []string{"eth0"}, LogGroup: 7, NetRaw: true,
	}
	for _, c := range change {
		c(&l.in)
	}
	if l.kernel, err = Open(); err != nil {
		l.t.Fatal(err)
	}
	l.fw = New(l.kernel, l.in, nil)
	if err := l.fw.Apply(); err != nil {
		l.t.Fatal(err)
	}
}

// listen is one of our listeners; it notes the first bytes of what comes.
func (l *lab) listen(network, address string) uint16 {
	l.t.Helper()
	note := func(b []byte) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.redirected = append(l.redirected, string(b))
	}
	if network == "udp" {
		pc, err := net.ListenPacket(network, address)
		if err != nil {
			l.t.Fatal(err)
		}
		go func() {
			buf := make([]byte, 4096)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				note(buf[:n])
				if _, err := pc.WriteTo([]byte("answer"), from); err != nil {
					return
				}
			}
		}()
		return netip.MustParseAddrPort(pc.LocalAddr().String()).Port()
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), network, address)
	if err != nil {
		l.t.Fatal(err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4096)
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				note(buf[:n])
				_, _ = c.Write([]byte("answer"))
			}()
		}
	}()
	return netip.MustParseAddrPort(ln.Addr().String()).Port()
}

func (l *lab) wasRedirected(marker string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.redirected {
		if strings.Contains(s, marker) {
			return true
		}
	}
	return false
}

// agentCommand is a program of the sandbox.
func (l *lab) agentCommand(do string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asAgent+"="+do)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(l.group.Fd()), Pdeathsig: syscall.SIGKILL}
	return cmd
}

// agent runs one and returns what it printed.
func (l *lab) agent(do string, args ...string) string {
	l.t.Helper()
	out, err := l.agentCommand(do, args...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("agent %s %v: %v\n%s", do, args, err, out)
	}
	return strings.TrimSpace(string(out))
}
