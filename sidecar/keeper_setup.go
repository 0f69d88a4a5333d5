//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control"
	"github.com/exeat/exeat/firewall"
)

// logGroup is the NFLOG group of the joined ruleset, one that tools do not use by
// default.
const logGroup = 0x6578

// A log file is set aside when it has grown to logBytes, and logFiles such stay.
const (
	logBytes = 64 << 20
	logFiles = 4
)

// nobody is a uid that no socket has, before we know how ours are told apart.
const nobody = 1<<32 - 2

// setUp does all that takes privileges. From its second step on nothing gets out
// that a worker has not let out.
func (k *Keeper) setUp(ctx context.Context) (err error) {
	k.base.Config = k.config
	if held, err := capabilities(); err != nil || held&(1<<unix.CAP_NET_ADMIN) == 0 {
		return errors.Join(errors.New("no rules can be put in force: grant NET_ADMIN (docker run --cap-add NET_ADMIN)"), err)
	}
	if err := k.openFiles(); err != nil {
		return err
	}
	kernel, err := firewall.Open()
	if err != nil {
		return fmt.Errorf("reach nftables (does this kernel have it?): %w", err)
	}
	defer func() { err = errors.Join(err, kernel.Close()) }()
	if err := k.survey(); err != nil {
		return err
	}
	guarded, err := kernel.Guarded()
	if err != nil {
		return fmt.Errorf("see whether this namespace was guarded before: %w", err)
	}
	if err := k.shut(kernel, firewall.Own{UID: nobody}, firewall.NewSecrets(probeMark)); err != nil {
		return err
	}
	if err := k.listenMissing(); err != nil {
		return err
	}
	if err := k.listenControl(); err != nil {
		return err
	}
	if err := k.holdQueues(ctx); err != nil {
		return err
	}
	if err := k.tellApart(); err != nil {
		return err
	}
	return k.findResolvers(ctx, kernel, guarded)
}

// openFiles opens what privileges may be needed for.
func (k *Keeper) openFiles() error {
	var disk *FileStore
	if dir := k.config.StateDir; dir != "" {
		var err error
		if disk, err = OpenStore(dir); err != nil {
			return fmt.Errorf("--state %s (make it, for uid 0 to write): %w", dir, err)
		}
	}
	k.memory = remember(disk)
	if path := k.config.LogFile; path != "" {
		var err error
		if k.log, err = audit.OpenFile(path, logBytes, logFiles); err != nil {
			return fmt.Errorf("--log %s: %w", path, err)
		}
	}
	return nil
}

// survey finds out what the kernel can do and which links there are.
func (k *Keeper) survey() error {
	capabilities, features, err := firewall.Probe()
	// What could not be probed is shown as such, and must not be relied on.
	k.base.Capabilities, k.base.Features = capabilities, features
	if k.config.NoEgressHook {
		no := false
		k.base.Features.Egress, k.base.Features.AnyLink = &no, &no
	}
	if k.config.NetRaw && !has(k.base.Features.Egress) {
		return errors.Join(errors.New("this kernel has no netdev egress hook (Linux 5.16), without which a sandbox with NET_RAW can't be held: drop NET_RAW from the sandbox and say --sandbox-net-raw=no"), err)
	}
	if k.base.Links, err = links(); err != nil {
		return err
	}
	return nil
}

func has(feature *bool) bool { return feature != nil && *feature }

// links are the namespace's links by index.
func links() (map[int]string, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the links: %w", err)
	}
	all := map[int]string{}
	for _, l := range list {
		all[l.Index] = l.Name
	}
	return all, nil
}

// input is the ruleset without a policy, which denies everything.
func (h handover) input(own firewall.Own, secrets firewall.Secrets) firewall.JoinedInput {
	in := firewall.JoinedInput{
		V4: h.V4, V6: h.V6, Own: own, Secrets: secrets, ProbeMark: probeMark,
		StrictDestinations: h.Config.StrictDestinations, Inbound: h.Config.Inbound,
		EngineDNS: h.Resolvers.Engine, EngineUpstreams: h.Resolvers.EngineUpstreams,
		NetRaw: h.Config.NetRaw, LogGroup: logGroup,
	}
	switch {
	case has(h.Features.AnyLink):
		in.AnyLink = true
	case has(h.Features.Egress):
		for _, name := range h.Links {
			if name != "lo" {
				in.Links = append(in.Links, name)
			}
		}
		slices.Sort(in.Links)
	}
	return in
}

// shut puts rules in force that deny everything.
func (k *Keeper) shut(kernel *firewall.Kernel, own firewall.Own, secrets firewall.Secrets) error {
	err := kernel.Apply(firewall.JoinedRuleset(k.base.input(own, secrets)))
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("put rules in force (does a seccomp profile or another module forbid it?): %w", err)
	case err != nil:
		return fmt.Errorf("put rules in force: %w", err)
	}
	return nil
}

// listenMissing binds listeners on every family of the namespace that has none.
func (k *Keeper) listenMissing() error {
	for i, ports := range []*firewall.Ports{&k.base.V4, &k.base.V6} {
		if ports.TCP != 0 {
			continue
		}
		found, files, err := listen(loopbacks[i])
		if err != nil {
			return fmt.Errorf("listen on %s: %w", loopbacks[i], err)
		}
		*ports = found
		k.hold(files...)
	}
	if k.base.V4.TCP == 0 && k.base.V6.TCP == 0 {
		return errors.New("listen: this namespace has neither 127.0.0.1 nor ::1: bring its loopback up")
	}
	return nil
}

func (k *Keeper) hold(files ...held) {
	for _, h := range files {
		k.held = append(k.held, h)
		k.base.Roles = append(k.base.Roles, h.role)
	}
}

// listenControl makes the control socket, which stays over workers.
func (k *Keeper) listenControl() error {
	path := k.config.Control
	if path == "" {
		return nil
	}
	// Whoever may not use the socket is told apart by its mode and credentials.
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("--control %s: %w", path, err)
	}
	ln, err := control.Listen(path, control.Access{UID: k.config.ControlUID, GID: k.config.ControlGID})
	if errors.Is(err, unix.EPERM) && (k.config.ControlUID != nil || k.config.ControlGID != nil) {
		return fmt.Errorf("--control %s: giving it to another user takes CHOWN at start (docker run --cap-add CHOWN): %w", path, err)
	}
	if err != nil {
		return fmt.Errorf("--control %s: %w", path, err)
	}
	k.control = ln
	filer, ok := ln.(syscall.Conn)
	if !ok {
		return fmt.Errorf("--control %s: a %T has no descriptor", path, ln)
	}
	f, err := duplicate(filer, string(roleControl))
	if err != nil {
		return fmt.Errorf("--control %s: %w", path, err)
	}
	k.hold(held{roleControl, f})
	return nil
}

// queueAttempts, queueWait: what a sidecar before us held is given back some
// milliseconds after it has ended.
const (
	queueAttempts = 20
	queueWait     = 20 * time.Millisecond
)

// holdQueues keeps AF_XDP from a sandbox that has NET_RAW (bypass.md B06).
func (k *Keeper) holdQueues(ctx context.Context) error {
	if !k.config.NetRaw {
		return nil
	}
	for index, name := range k.base.Links {
		for attempt := 1; ; attempt++ {
			queues, err := firewall.HoldQueues(index)
			if err == nil {
				k.safe = append(k.safe, queues)
				break
			}
			switch {
			case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
				// Neither we nor the sandbox can.
			case errors.Is(err, unix.EBUSY) && attempt < queueAttempts && wait(ctx, queueWait):
				continue
			case errors.Is(err, unix.EPERM):
				return fmt.Errorf("hold the AF_XDP queues of %s, which a sandbox with NET_RAW could send through unseen: grant NET_RAW at start (it is given back), or drop it from the sandbox and say --sandbox-net-raw=no: %w", name, err)
			default:
				return fmt.Errorf("hold the AF_XDP queues of %s (does the sandbox hold them already? drop NET_RAW from it and say --sandbox-net-raw=no): %w", name, err)
			}
			break
		}
	}
	return nil
}

// tellApart finds out how our sockets are told from the sandbox's.
func (k *Keeper) tellApart() error {
	own, err := firewall.ProbeCgroup()
	if errors.Is(err, firewall.ErrNoCgroup) {
		var uidErr error
		if own.UID, uidErr = randomUID(); uidErr != nil {
			return errors.Join(err, uidErr)
		}
		err = nil
	}
	if err != nil {
		return fmt.Errorf("tell our traffic from the sandbox's: %w", err)
	}
	k.base.Own = own
	return nil
}
