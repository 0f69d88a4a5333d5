//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/firewall"
)

// resolvConf is what the engine writes for a container.
const resolvConf = "/etc/resolv.conf"

// engineNamed says whether the engine has put its DNS in this namespace. The
// sandbox may have written the file: then it goes without names of one label, or
// we ask an engine that does not answer.
func engineNamed() bool {
	named, _, err := dnsfilter.ReadResolvConf(resolvConf)
	return err == nil && slices.ContainsFunc(named, func(u dnsfilter.Upstream) bool { return u.Addr == engineDNS })
}

// discover finds the engine's DNS, and whom that asks from in here.
func (k *Keeper) discover(ctx context.Context, kernel *firewall.Kernel) (found resolvers, err error) {
	if !engineNamed() {
		return found, nil
	}
	own := k.base.Own
	dialer := &ownDialer{streamEngine: k.config.NetRaw}
	dialer.SetMultipathTCP(false)
	if own.Cgroup == 0 {
		// We have not taken our uid yet: for this moment ours is the one that we have.
		own.UID = uint32(os.Getuid())
		own.Bears = firewall.NewSecrets(probeMark)
		dialer.Control = withSecrets(own.Bears)
	}
	k.base.Resolvers.Engine = true // lets us ask
	if err := k.shut(kernel, own, firewall.NewSecrets(probeMark)); err != nil {
		return found, err
	}
	d := discovery{kernel: kernel, dial: dialer}
	defer func() { err = errors.Join(err, d.close()) }()
	for _, h := range k.held {
		if err := d.add(h); err != nil {
			return found, err
		}
	}
	engine, asked, silent, err := d.run(ctx)
	if err != nil {
		return found, err
	}
	if silent != nil {
		fmt.Fprintf(k.err, "exeatd: warning: %s names the engine's DNS, %s, which does not answer, so names of one label do not resolve: %v\n", resolvConf, engineDNS, silent)
	}
	found.Engine = engine
	switch {
	case asked.IsValid():
		found.Upstreams, found.EngineUpstreams = []string{asked.String()}, []netip.Addr{asked}
	case engine:
		found.Upstreams = []string{engineDNS.String()}
	}
	return found, nil
}

// add takes one of our DNS sockets over.
func (d *discovery) add(h held) error {
	switch h.role {
	case roleDNSPackets:
		conn, err := net.FilePacketConn(h.file)
		if err != nil {
			return err
		}
		d.packets = append(d.packets, conn)
	case roleDNSStreams:
		ln, err := net.FileListener(h.file)
		if err != nil {
			return err
		}
		tcp, ok := ln.(*net.TCPListener)
		if !ok {
			return errors.Join(fmt.Errorf("the %s descriptor is a %T, want TCP", h.role, ln), ln.Close())
		}
		d.streams = append(d.streams, tcp)
	case roleTransparent, roleExplicit, roleControl:
	}
	return nil
}

// close gives the sockets back as they were.
func (d *discovery) close() error {
	var errs []error
	for _, conn := range d.packets {
		errs = append(errs, conn.SetReadDeadline(time.Time{}), conn.Close())
	}
	for _, ln := range d.streams {
		errs = append(errs, ln.SetDeadline(time.Time{}), ln.Close())
	}
	return errors.Join(errs...)
}

// withSecrets marks the sockets of a dialer as ours.
func withSecrets(secrets firewall.Secrets) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var inner error
		err := c.Control(func(fd uintptr) { inner = secrets.SetOnSocket(int(fd)) })
		return errors.Join(err, inner)
	}
}

// duplicate gives a descriptor of its own to what c holds.
func duplicate(c syscall.Conn, name string) (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	dup := -1
	var inner error
	err = raw.Control(func(fd uintptr) { dup, inner = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
	if err = errors.Join(err, inner); err != nil {
		return nil, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	return os.NewFile(uintptr(dup), name), nil
}
