//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Two peers are none: ours, and the direct way, which the client goes straight to the
// origin.
const (
	ours   = "exeat"
	direct = "direct"
)

// peer is a proxy under measurement.
type peer struct {
	name    string
	version string
	address string // the origin, as this peer's clients know it
	port    int    // where it listens
	connect bool   // its clients say CONNECT; else they are redirected
	// versionFlag makes the command print its version; empty is -v.
	versionFlag string
	// config is written to NAME.conf in the lab's directory.
	config  string
	command []string
	// silent discards what it writes: smokescreen logs every connection.
	silent  bool
	process *process
}

// newPeers sets up those that are wanted and installed. Ours, which a command may
// stand in for, and the direct way are always there.
func newPeers(l *lab, command string) ([]*peer, error) {
	all := []*peer{
		{name: direct, version: "-"},
		{name: ours, version: "this tree", command: []string{l.program, "engine", "-listen", ":{port}", "-resolve", "{origin}"}},
		haproxy(), squid(), smokescreen(), tinyproxy(),
	}
	if command != "" {
		all[1].command = strings.Fields(command)
	}
	var peers []*peer
	address := netip.MustParseAddr(firstOrigin)
	for i, p := range all {
		p.address, p.port = address.String(), 10000+i
		address = address.Next()
		if p.name == direct {
			peers = append(peers, p)
			continue
		}
		there, err := l.install(p)
		if err != nil {
			return nil, err
		}
		if there {
			peers = append(peers, p)
		}
	}
	return peers, nil
}

// install prepares a peer and says whether it is measured: where it is wanted, and its
// program is there and works. One that is built from its module (tools/peers) lies beside
// this binary, and is copied to where every uid reaches it.
func (l *lab) install(p *peer) (bool, error) {
	if !l.wants(p.name) {
		return false, nil
	}
	if self, err := os.Executable(); err == nil {
		built := filepath.Join(filepath.Dir(self), "peers", p.command[0])
		if program, err := os.ReadFile(built); err == nil {
			p.command[0] = filepath.Join(l.dir, p.command[0])
			if err := os.WriteFile(p.command[0], program, 0o755); err != nil {
				return false, err
			}
		}
	}
	path, err := exec.LookPath(p.command[0])
	if err == nil {
		err = p.ask(path)
	}
	if err != nil && p.name != ours {
		fmt.Fprintf(l.log, "%s is not measured: %v\n", p.name, err)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, p.prepare(l.dir)
}

// ask has the program say which version it is.
func (p *peer) ask(path string) error {
	if p.version != "" {
		return nil
	}
	flag := cmp.Or(p.versionFlag, "-v")
	out, err := exec.Command(path, flag).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", path, flag, err, out)
	}
	p.version, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return nil
}

// prepare fills in what the lab decides, and writes the peer's configuration.
func (p *peer) prepare(dir string) error {
	config := filepath.Join(dir, p.name+".conf")
	fill := strings.NewReplacer("{port}", strconv.Itoa(p.port), "{origin}", p.address,
		"{config}", config, "{dir}", dir, "{uid}", strconv.Itoa(peerUID))
	for i := range p.command {
		p.command[i] = fill.Replace(p.command[i])
	}
	return os.WriteFile(config, []byte(fill.Replace(p.config)), 0o644)
}

// start runs the peer and waits until a connection goes through it.
func (p *peer) start(l *lab) error {
	return p.startAs(l, func() error {
		_, err := l.load(p, "setup", 1, 1)
		return err
	})
}

// startAs runs the peer and waits until try succeeds.
func (p *peer) startAs(l *lab, try func() error) error {
	var err error
	running := l.origin
	if p.name != direct {
		command := p.command
		if p.silent {
			command = append([]string{"sh", "-c", `exec "$@" >/dev/null 2>&1`, "sh"}, command...)
		}
		if p.process, err = l.start(l.sandbox, peerUID, command...); err != nil {
			return err
		}
		running = p.process
	}
	for range 100 {
		if err = try(); err == nil {
			return nil
		}
		if dead := running.alive(); dead != nil {
			return dead
		}
		if err := pause(l.ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.Join(fmt.Errorf("nothing goes through it: %s", running.said()), err)
}

// haproxy splices by pipes of 1 MiB, reads the server name, and dials where the
// client was going.
func haproxy() *peer {
	return &peer{
		name: "haproxy", command: []string{"haproxy", "-db", "-f", "{config}"},
		config: `global
    maxconn 8000
    maxpipes 32
    tune.pipesize 1048576
    nbthread 2
defaults
    mode tcp
    timeout connect 10s
    timeout client 1h
    timeout server 1h
    option splice-request
    option splice-response
frontend sandbox
    bind 127.0.0.1:{port} backlog 4096
    tcp-request inspect-delay 10s
    tcp-request content accept if { req.ssl_sni -i ` + originName + ` }
    tcp-request content reject if { req.ssl_hello_type 1 }
    default_backend origin
backend origin
    server origin 0.0.0.0:0
`,
	}
}

func squid() *peer {
	return &peer{
		name: "squid", connect: true, command: []string{"squid", "-N", "-f", "{config}"},
		config: `http_port 127.0.0.1:{port}
http_access allow all
cache deny all
cache_mem 0
access_log none
cache_store_log none
cache_log /dev/null
pid_filename none
coredump_dir {dir}
max_filedescriptors 20000
read_ahead_gap 1 MB
shutdown_lifetime 0 seconds
`,
	}
}

// smokescreen has no list to look destinations up in, no metrics, and its log is
// thrown away.
func smokescreen() *peer {
	return &peer{
		name: "smokescreen", connect: true, silent: true,
		command: []string{"smokescreen", "--listen-ip", "127.0.0.1", "--listen-port", "{port}", "--allow-range", "203.0.113.0/24"},
	}
}

func tinyproxy() *peer {
	return &peer{
		name: "tinyproxy", connect: true, command: []string{"tinyproxy", "-d", "-c", "{config}"},
		config: `Port {port}
Listen 127.0.0.1
Timeout 3600
MaxClients 9000
LogLevel Critical
DisableViaHeader Yes
`,
	}
}
