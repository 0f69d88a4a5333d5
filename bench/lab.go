//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// peerUID is whom every proxy runs as; its own connections are not redirected.
	peerUID = 65533
	// descriptors is what every process may open.
	descriptors = 20000
	originPort  = 443
	sandboxAddr = "203.0.113.1"
	firstOrigin = "203.0.113.10" // reached directly; each peer has the next
	tcpControl  = "reno"         // bbr costs veth a quarter and hides differences
)

// size is how much of everything is measured.
type size struct {
	rounds       int
	bulkBytes    int
	connections  int
	trips        int
	idle, beside int // tunnels of P3 and P2
	questions    int
}

var (
	full  = size{rounds: 7, bulkBytes: 3 << 30, connections: 4000, trips: 20000, idle: 5000, beside: 2000, questions: 100000}
	short = size{rounds: 5, bulkBytes: 1 << 30, connections: 2000, trips: 5000, idle: 5000, beside: 2000, questions: 40000}
)

// lab is two namespaces joined by a cable: the sandbox, with the client and the
// peers, and the origin's.
type lab struct {
	// ctx ends when the run does: nothing is measured any more then.
	ctx             context.Context
	size            size
	picked          []string // the peers that are wanted; none are all
	dir             string   // readable by every uid
	program         string   // this binary, in dir
	sandbox, beyond netns.NsHandle
	starter         *starter
	origin          *process
	peers           []*peer
	log             io.Writer
}

// newLab builds the lab and starts the origin and the peers: those picked (none are all)
// that are installed. command stands in for our engine; "" is our engine.
func newLab(ctx context.Context, size size, picked []string, command string, log io.Writer) (*lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the lab makes network namespaces: run it as root")
	}
	limit := syscall.Rlimit{Cur: descriptors, Max: descriptors}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("allow %d descriptors: %w", descriptors, err)
	}
	l := &lab{ctx: ctx, size: size, picked: picked, log: log, starter: newStarter(), sandbox: netns.None(), beyond: netns.None()}
	if err := l.furnish(command); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *lab) furnish(command string) error {
	if err := l.unpack(); err != nil {
		return err
	}
	if err := l.cable(); err != nil {
		return fmt.Errorf("join the namespaces: %w", err)
	}
	var err error
	if l.origin, err = l.start(l.beyond, 0, l.program, "origin", fmt.Sprintf(":%d", originPort)); err != nil {
		return err
	}
	if l.peers, err = newPeers(l, command); err != nil {
		return err
	}
	if err := l.redirect(); err != nil {
		return err
	}
	l.peers, err = l.startAll(l.peers, func(p *peer) error { return p.start(l) })
	return err
}

// startAll starts peers and gives those that are then measured: a peer's program that
// does not work here is its own affair.
func (l *lab) startAll(peers []*peer, start func(p *peer) error) ([]*peer, error) {
	var running []*peer
	for _, p := range peers {
		err := start(p)
		if err == nil {
			running = append(running, p)
			continue
		}
		err = fmt.Errorf("%s: %w", p.name, err)
		if p.name == ours || p.name == direct || l.ctx.Err() != nil {
			return running, errors.Join(err, p.process.stop())
		}
		fmt.Fprintf(l.log, "%v: it is not measured\n", err)
		if err := p.process.stop(); err != nil {
			return running, err
		}
	}
	return running, nil
}

// wants says whether a peer is to be measured.
func (l *lab) wants(name string) bool {
	return name == ours || name == direct || len(l.picked) == 0 || contains(l.picked, name)
}

// unpack makes the lab's directory and copies this binary there, since the peers'
// uid may not be able to reach where it lies.
func (l *lab) unpack() error {
	dir, err := os.MkdirTemp(openTemp(), "exeat-bench-")
	if err != nil {
		return err
	}
	l.dir = dir
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	l.program = filepath.Join(dir, "bench")
	return os.WriteFile(l.program, program, 0o755)
}

// openTemp is a directory for temporary files that every uid comes to: TMPDIR may well be
// somebody's own.
func openTemp() string {
	all := []string{os.TempDir(), "/tmp", "/var/tmp"}
	for _, dir := range all {
		if open(dir) {
			return dir
		}
	}
	return all[0]
}

// open says whether every uid may pass through the directory and those above it.
func open(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

// cable makes the two namespaces and the veth pair between them.
func (l *lab) cable() error {
	addresses := make([]string, 16)
	at := netip.MustParseAddr(firstOrigin)
	for i := range addresses {
		addresses[i], at = at.String(), at.Next()
	}
	var err error
	l.sandbox, l.beyond, err = newPair([]string{sandboxAddr}, addresses)
	return err
}

// newPair makes two namespaces joined by a cable, with addresses at its ends.
func newPair(near, far []string) (one, other netns.NsHandle, err error) {
	if one, err = newNamespace(); err != nil {
		return one, netns.None(), err
	}
	if other, err = newNamespace(); err != nil {
		return one, other, errors.Join(err, one.Close())
	}
	err = within(one, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(other),
		})
	})
	if err == nil {
		err = within(one, func() error { return configure(near...) })
	}
	if err == nil {
		err = within(other, func() error { return configure(far...) })
	}
	if err != nil {
		return netns.None(), netns.None(), errors.Join(err, one.Close(), other.Close())
	}
	return one, other, nil
}

// configure sets up the namespace that the thread is in.
func configure(addresses ...string) error {
	for setting, value := range map[string]string{
		"ipv4/tcp_congestion_control": tcpControl,
		"ipv4/ip_local_port_range":    "12000 65535", // above the ports that peers listen at
		"ipv4/tcp_tw_reuse":           "1",           // thousands of short connections to one address
	} {
		if err := set(setting, value); err != nil {
			return err
		}
	}
	for _, name := range []string{"lo", "eth0"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		if name == "lo" {
			continue
		}
		for _, a := range addresses {
			address, err := netlink.ParseAddr(a + "/24")
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(link, address); err != nil {
				return err
			}
		}
	}
	return nil
}

// set changes a setting of the network namespace that the thread is in.
func set(setting, value string) error {
	return os.WriteFile("/proc/sys/net/"+setting, []byte(value), 0o644)
}

// redirect sends what goes to a peer's origin address to the peer instead, as a
// sandbox's ruleset does; what the peers themselves send goes out. It is not
// tracked either: when a client's connection is reset, its port is soon a peer's,
// and conntrack would apply the dead connection's redirection to the new one.
func (l *lab) redirect() error {
	var own, rules strings.Builder
	for _, p := range l.peers {
		if p.name == direct {
			continue
		}
		fmt.Fprintf(&own, "%s, ", p.address)
		if !p.connect {
			fmt.Fprintf(&rules, "  ip daddr %s tcp dport %d redirect to :%d\n", p.address, originPort, p.port)
		}
	}
	table := fmt.Sprintf(`table ip bench {
 chain raw-out {
  type filter hook output priority raw
  meta skuid %[1]d ip daddr { %[2]s } notrack
 }
 chain raw-in {
  type filter hook prerouting priority raw
  ip saddr { %[2]s } iifname eth0 notrack
 }
 chain output {
  type nat hook output priority -100
  meta skuid %[1]d accept
%[3]s }
}
`, peerUID, strings.TrimSuffix(own.String(), ", "), rules.String())
	return within(l.sandbox, func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(table)
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		// What is over leaves the connection table, which is full after two minutes of
		// set-ups else: then whatever is new is refused, of every peer. The settings are
		// there when something has asked the kernel to track.
		return errors.Join(set("netfilter/nf_conntrack_tcp_timeout_time_wait", "5"), set("netfilter/nf_conntrack_udp_timeout", "5"))
	})
}

// close stops everything and removes the lab, if there is one.
func (l *lab) close() error {
	if l == nil {
		return nil
	}
	var err error
	for _, p := range l.peers {
		err = errors.Join(err, p.process.stop())
	}
	err = errors.Join(err, l.origin.stop())
	for _, ns := range []*netns.NsHandle{&l.sandbox, &l.beyond} {
		if ns.IsOpen() {
			err = errors.Join(err, ns.Close())
		}
	}
	close(l.starter.work)
	if l.dir != "" {
		err = errors.Join(err, os.RemoveAll(l.dir))
	}
	return err
}

// newNamespace makes a network namespace and stays out of it.
func newNamespace() (netns.NsHandle, error) {
	made := netns.None()
	err := onThread(func() (err error) {
		made, err = netns.New()
		return err
	})
	return made, err
}

// within runs f on a thread that is in ns; what it starts is there too.
func within(ns netns.NsHandle, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread of its own, which ends with it.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is not used again
		result <- f()
	}()
	return <-result
}

// pause waits unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
