//go:build linux

package bypass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/control/client"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/probe"
)

// The addresses of the laboratory. Documentation ranges count as public.
const (
	sandbox4, sandbox6 = "198.51.100.2", "2001:db8::2"
	gateway4, gateway6 = "198.51.100.1", "2001:db8::1"
	allowed4, allowed6 = "203.0.113.10", "2001:db8:a::10"
	denied4, denied6   = "203.0.113.66", "2001:db8:a::66"
	groupVariable      = "EXEAT_BYPASS_GROUP"
)

// embedding are the far side's other addresses: metadata services, and those that
// hold the denied one.
var embedding = []string{
	"169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254",
	"64:ff9b::cb00:7142", "2002:cb00:7142::1", "::203.0.113.66",
}

// laboratory is a sandbox's namespace (the process's own) and a far side behind a veth
// pair, which keeps every frame that gets there.
type laboratory struct {
	t     *testing.T
	set   capabilitySet
	far   int // descriptor of the far namespace
	group *os.File
	// sidecar is the enforcement, once there is one.
	sidecar *client.Client

	mu     sync.Mutex
	frames [][]byte
}

func newLab(t *testing.T, set capabilitySet) *laboratory {
	l := &laboratory{t: t, set: set}
	l.sh("mount --make-rprivate /; mount -t proc proc /proc")
	var err error
	if l.group, err = os.Open(os.Getenv(groupVariable)); err != nil {
		t.Fatal(err)
	}
	ready, end := make(chan error), make(chan struct{})
	tid := 0
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			tid = unix.Gettid()
			l.far, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
		<-end
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(end) })
	l.sh(fmt.Sprintf(`ip link set lo up
ip link add eth0 type veth peer name far0 netns %d
ip addr add %s/24 dev eth0; ip -6 addr add %s/64 dev eth0 nodad; ip link set eth0 up
for k in forwarding accept_local; do sysctl -qw net.ipv4.conf.all.$k=1; done
for k in all lo default; do sysctl -qw net.ipv4.conf.$k.rp_filter=0; done
sysctl -qw net.ipv4.ping_group_range="0 2147483647" net.ipv4.tcp_fastopen=3`, tid, sandbox4, sandbox6))
	l.inFar(func() error {
		return shell(fmt.Sprintf(`ip link set lo up
ip addr add %s/24 dev far0; ip -6 addr add %s/64 dev far0 nodad; ip link set far0 up
for a in %s; do case $a in *:*) ip -6 addr add $a/128 dev lo nodad;; *) ip addr add $a/32 dev lo;; esac; done
sysctl -qw net.ipv4.conf.all.accept_source_route=1 net.ipv4.conf.far0.accept_source_route=1
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.far0.rp_filter=0 net.ipv4.tcp_fastopen=3 net.ipv4.icmp_echo_ignore_broadcasts=0`,
			gateway4, gateway6, strings.Join(append([]string{allowed4, denied4, allowed6, denied6}, embedding...), " ")))
	})
	l.sh(fmt.Sprintf(`ip route add default via %s; ip -6 route add default via %s
for i in 1 2 3 4 5 6 7 8 9 10; do ping -6 -c1 -W1 %s >/dev/null && break || sleep 0.1; done; ping -c1 -W1 %s >/dev/null`,
		gateway4, gateway6, denied6, denied4))
	l.capture()
	for _, port := range []uint16{22, 53, 80, 443, 853, 8443, 9999} {
		l.serveFar(port)
	}
	return l
}

func shell(script string) error {
	out, err := exec.Command("/bin/sh", "-ec", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (l *laboratory) sh(script string) {
	l.t.Helper()
	if err := shell(script); err != nil {
		l.t.Fatal(err)
	}
}

// inFar runs f on a thread of the far namespace.
func (l *laboratory) inFar(f func() error) {
	l.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- errors.Join(unix.Setns(l.far, unix.CLONE_NEWNET), f())
	}()
	if err := <-done; err != nil {
		l.t.Fatal(err)
	}
}

// capture keeps every frame that arrives at the far end of the link.
func (l *laboratory) capture() {
	fd := -1
	l.inFar(func() (err error) {
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	})
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

// count says how often a marker has arrived.
func (l *laboratory) count(marker string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, f := range l.frames {
		n += bytes.Count(f, []byte(marker))
	}
	return n
}

// serveFar echoes TCP and UDP on a port of every far address.
func (l *laboratory) serveFar(port uint16) {
	l.inFar(func() error {
		ln, err := net.ListenTCP("tcp", &net.TCPAddr{Port: int(port)})
		if err != nil {
			return err
		}
		go accept(ln, func(c net.Conn) { copyBack(c) })
		pc, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(port)})
		if err != nil {
			return err
		}
		go answerEach(pc, func(b []byte) []byte { return b })
		return nil
	})
}

func accept(ln net.Listener, serve func(net.Conn)) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

func copyBack(c net.Conn) {
	if _, err := io.Copy(c, c); err != nil {
		return
	}
}

func answerEach(pc net.PacketConn, answer func([]byte) []byte) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		if _, err := pc.WriteTo(answer(buf[:n]), from); err != nil {
			return
		}
	}
}

// enforce puts a policy in force, by a sidecar that is started for the first.
func (l *laboratory) enforce(document string) {
	l.t.Helper()
	d, _, err := policy.Parse([]byte(document))
	if err != nil {
		l.t.Fatal(err)
	}
	if l.sidecar == nil {
		l.start()
	}
	if _, err := l.sidecar.Swap(l.t.Context(), api.SwapRequest{Policy: &d}); err != nil {
		l.t.Fatal(err)
	}
}

// start starts exeatd in our namespace and control group, and waits until it is
// ready. It lives until the test ends.
func (l *laboratory) start() {
	l.t.Helper()
	dir, err := os.MkdirTemp(bin(), "sidecar")
	if err != nil {
		l.t.Fatal(err)
	}
	raw := "no"
	if l.set.raw() {
		raw = "yes"
	}
	var written bytes.Buffer
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(filepath.Join(bin(), "exeatd"), "--control", socket, "--mode", "no-network",
		"--resolver", allowed4, "--sandbox-net-raw="+raw, "--log", filepath.Join(dir, "log"))
	cmd.Stdout, cmd.Stderr = &written, &written
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal follows the thread
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.sidecar = client.New(socket)
	l.t.Cleanup(func() {
		l.sidecar.Close()
		err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), ended(cmd.Wait()))
		if l.t.Failed() {
			l.t.Logf("exeatd: %v\n%s", err, written.String())
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := l.sidecar.Ready(l.t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatal(err)
		}
	}
}

// ended leaves out that a process ended by a signal of ours.
func ended(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// result is a case as the sandbox saw it, and how often its marker arrived.
type result struct {
	probe.Finding
	arrived int
}

// agent is a command of the sandbox, with its capabilities.
func (l *laboratory) agent(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%x", capabilitiesVariable, l.set.keep))
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(l.group.Fd()), Pdeathsig: syscall.SIGKILL}
	return cmd
}

// attack runs the probe in the sandbox, with its capabilities.
func (l *laboratory) attack(prefix string, rows []string) []result {
	l.t.Helper()
	args := []string{
		exeat(), "probe", "-o", "json", "--target", denied4, "--target", denied6,
		"--through", allowed4, "--marker", prefix,
	}
	for _, id := range rows {
		args = append(args, "--case", id)
	}
	cmd := l.agent(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		l.t.Fatalf("the probe: %v\n%s%s", err, stdout.String(), stderr.String())
	}
	var report probe.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		l.t.Fatalf("%v in %q (%s)", err, stdout.String(), stderr.String())
	}
	time.Sleep(200 * time.Millisecond) // what is on its way arrives
	var results []result
	for _, f := range report.Cases {
		results = append(results, result{f, l.count(f.Marker)})
	}
	return results
}
