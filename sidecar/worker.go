//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control"
	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/proxy"
)

// ErrFamilies ends a worker that wants listeners on an address family which has
// appeared; its exit status tells the keeper (FamiliesStatus).
var ErrFamilies = errors.New("an address family has appeared")

// FamiliesStatus is the exit status of a worker that ends with ErrFamilies.
const FamiliesStatus = 75 // EX_TEMPFAIL of sysexits.h

// Work is the worker of a joined sidecar, started by its keeper and by nobody
// else. It writes the log to stdout, and ends when ctx does, once what was open
// has drained.
func Work(ctx context.Context, stdout io.Writer) (err error) {
	LimitMemory()
	h, files, conn, err := receiveHandover()
	if err != nil {
		return err
	}
	if err := privileged(); err != nil {
		return err
	}
	w := &joinedWorker{handover: h, keeper: newKeeperLink(conn)}
	defer func() { err = errors.Join(err, w.close()) }()
	if w.claims, err = newClaims(); err != nil {
		return err
	}
	if err := w.take(files); err != nil {
		return err
	}
	if err := w.enforce(stdout); err != nil {
		return err
	}
	return w.serve(ctx)
}

// privileged makes sure that we hold what we need and no more.
func privileged() error {
	held, err := capabilities()
	if err != nil {
		return err
	}
	if held != 1<<unix.CAP_NET_ADMIN {
		return fmt.Errorf("the worker holds capabilities %#x, want NET_ADMIN alone (%#x)", held, uint64(1)<<unix.CAP_NET_ADMIN)
	}
	return undumpable()
}

// joinedWorker is what one worker consists of.
type joinedWorker struct {
	handover
	keeper    *keeperLink
	secrets   firewall.Secrets
	listeners Listeners
	socket    net.Listener

	kernel *firewall.Kernel
	fw     *firewall.Firewall
	car    *Sidecar
	packet *firewall.Log
	rules  *firewall.WatchRules
	links  *firewall.WatchLinks
	guard  *linkGuard
	probe  *flowProbe
	claims *claims
	local  atomic.Pointer[map[netip.Addr]struct{}]
	probed atomic.Pointer[string] // what the last probe of flows complains of

	catalogue *catalogue

	resumed bool // the policy is not yet put in force by us

	changed chan string   // somebody else changed our tables
	attack  chan struct{} // a packet that only an attacker sends
	strange chan string   // a link that we know nothing of
}

// take turns what the keeper handed over into listeners.
func (w *joinedWorker) take(files []held) error {
	for _, h := range files {
		if h.role != roleControl {
			if err := w.listeners.add(h); err != nil {
				return fmt.Errorf("take the %s listener over: %w", h.role, err)
			}
			continue
		}
		ln, err := net.FileListener(h.file)
		if err = errors.Join(err, h.file.Close()); err != nil {
			return fmt.Errorf("take the control socket over: %w", err)
		}
		w.socket = ln
	}
	w.secrets = firewall.NewSecrets(probeMark)
	if w.Own.Cgroup != 0 {
		return nil
	}
	w.Own.Bears = firewall.NewSecrets(probeMark)
	// Connections that we accept are of our uid, so they must bear the secrets.
	for _, ln := range append(w.listeners.Transparent, w.listeners.Explicit...) {
		raw, err := ln.SyscallConn()
		if err == nil {
			err = withSecrets(w.Own.Bears)("", "", raw)
		}
		if err != nil {
			return fmt.Errorf("mark a listener: %w", err)
		}
	}
	return nil
}

// enforce puts rules and policy in force. Whatever fails, what was in force
// before stands.
func (w *joinedWorker) enforce(stdout io.Writer) (err error) {
	w.changed, w.attack, w.strange = make(chan string, 1), make(chan struct{}, 1), make(chan string, 16)
	if w.kernel, err = firewall.Open(); err != nil {
		return fmt.Errorf("reach nftables: %w", err)
	}
	if w.rules, err = firewall.OpenWatchRules(w.kernel); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	if w.links, err = firewall.OpenWatchLinks(); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	w.fw = firewall.New(w.kernel, w.input(w.Own, w.secrets), nil)
	if w.Restart == "" {
		// A worker that comes after another finds its rules, which are no weaker than
		// what is about to be in force, and cut nothing.
		if err := w.fw.Apply(); err != nil {
			return fmt.Errorf("put rules in force: %w", err)
		}
	}
	if err := w.assemble(stdout); err != nil {
		return err
	}
	w.packet, err = firewall.OpenLog(firewall.LogConfig{
		Group: logGroup, Policy: w.car.InForce(), Names: w.car.Names(), Log: quietLog{w.car.Log(), w.claims.cover},
		Attack: func() { offer(w.attack, struct{}{}) },
	})
	if err != nil {
		return fmt.Errorf("hear of packets: %w", err)
	}
	if w.resumed = w.resumes(time.Now()); w.resumed {
		w.car.Resume()
		return nil
	}
	return w.begin()
}

// resumes says that the kernel holds what is in force, and lets us out as it did the
// worker before: then connections are served at once, and the rules put in force anew
// meanwhile, which takes the kernel longer than all else. Where control groups do not
// tell us apart our sockets bear secrets, which the rules do not know yet.
func (h *handover) resumes(now time.Time) bool {
	return h.Restart != "" && h.Own.Cgroup != 0 && h.Distrust == "" && !h.Between &&
		h.State != nil && h.State.Locked == "" && (h.State.Lease == nil || now.Before(h.State.Lease.Expires))
}

// offer sends v unless enough is waiting.
func offer[T any](c chan<- T, v T) {
	select {
	case c <- v:
	default:
	}
}

// assemble wires the engine.
func (w *joinedWorker) assemble(stdout io.Writer) error {
	if err := w.lookAround(); err != nil {
		return err
	}
	adapter := &joinedKernel{fw: w.fw, told: func(name string, addrs []netip.Addr, ttl time.Duration) {
		if err := w.keeper.attributed(name, addrs, ttl); err != nil {
			w.complain("the keeper was not told of an attribution: " + err.Error())
		}
	}, failed: func(err error) { w.complain(err.Error()) }}
	setup, err := w.setup()
	if err != nil {
		return err
	}
	setup.Log.Writer = stdout
	setup.Engine.Kernel = adapter
	if w.car, err = Assemble(setup); err != nil {
		return err
	}
	adapter.names = w.car.Names()
	now := time.Now()
	for _, e := range w.Names {
		w.car.Names().Add(e.Name, []netip.Addr{e.Addr}, e.Expires.Sub(now)-attribution.Grace)
	}
	w.probe = &flowProbe{policy: w.car.InForce(), settled: w.car.Settled, v4: w.V4, v6: w.V6, strictDestinations: w.Config.StrictDestinations, claims: w.claims}
	w.catalogue = w.newCatalogue()
	w.guard = newLinkGuard(w.handover)
	return nil
}

// setup is what the configuration says, for Assemble.
func (w *joinedWorker) setup() (Setup, error) {
	var s Setup
	var err error
	c := w.Config
	dialer := &ownDialer{streamEngine: c.NetRaw}
	dialer.SetMultipathTCP(false)
	if w.Own.Cgroup == 0 {
		dialer.Control = withSecrets(w.Own.Bears)
		s.Proxy.Dial = dialer.DialContext
		s.Proxy.Connect = proxy.Connector(w.Own.Bears.SetOnSocket)
	}
	c.Resolvers = w.Resolvers.Upstreams
	if s.DNS.Upstreams, err = c.upstreams(); err != nil {
		return s, err
	}
	if s.Proxy.UpstreamProxy, err = c.upstreamProxy(); err != nil {
		return s, err
	}
	floor, err := c.floor()
	if err != nil {
		return s, err
	}
	if w.Resolvers.Engine {
		s.DNS.Engine = &dnsfilter.Upstream{Addr: engineDNS}
	}
	s.DNS.Search, s.DNS.Dial, s.DNS.Local = w.Resolvers.Search, dialer, w.isLocal
	s.DNS.Pins = map[string][]netip.Addr{probeName: {probePin}}
	for name, addrs := range c.Pins {
		s.DNS.Pins[name] = addrs
	}
	s.Proxy.Local = w.isLocal
	s.Quiet, s.Drain = w.claims.cover, c.Drain
	s.Engine = Config{
		Version: c.Version, Shape: Joined, Name: c.Name,
		Policy: c.Policy, Phase: c.Phase, Phases: c.Phases, Floor: floor,
		Capabilities: w.Capabilities, Store: w.keeper, Health: w.health, OwnTraffic: w.ownTraffic(),
	}
	switch {
	case w.Distrust != "":
		s.Engine.Policy, s.Engine.Phase = policy.Document{Mode: policy.ModeNoNetwork}, ""
	case w.State != nil:
		s.Engine.Policy, s.Engine.Phase, s.Engine.Phases = w.State.Document, w.State.Phase, w.State.Phases
		s.Engine.Generation, s.Engine.Lease = w.State.Generation, w.State.Lease
	}
	return s, nil
}

// ownTraffic says how our sockets are told apart.
func (h *handover) ownTraffic() string {
	if h.Own.Cgroup != 0 {
		return fmt.Sprintf("control group %d at level %d", h.Own.Cgroup, h.Own.Level)
	}
	return fmt.Sprintf("uid %d and a secret mark", h.Own.UID)
}

// begin puts the first policy in force and says where it came from. A lockdown goes
// on, also where the kernel refuses it still: so the control socket tells of it.
func (w *joinedWorker) begin() error {
	if w.State != nil && w.State.Locked != "" {
		w.car.Lockdown(context.Background(), w.State.Locked)
	} else if err := w.car.Begin(context.Background()); err != nil {
		return err
	}
	record := func(kind audit.Kind, message string) { w.car.Log().Record(audit.Event{Kind: kind, Message: message}) }
	if w.Restart != "" {
		record(audit.KindLifecycle, "the worker before "+w.Restart+"; connections through it were lost")
	} else {
		record(audit.KindLifecycle, "started; our traffic is told apart by "+w.ownTraffic())
	}
	if w.Distrust != "" {
		w.car.fault("what was in force before can't be read, so everything is denied: " + w.Distrust)
	}
	return nil
}

func (w *joinedWorker) complain(message string) {
	w.car.Log().Record(audit.Event{Kind: audit.KindLifecycle, Message: message})
}

// close gives everything back; the rules stay.
func (w *joinedWorker) close() error {
	var errs []error
	if w.claims != nil {
		errs = append(errs, w.claims.close())
	}
	if w.car != nil {
		errs = append(errs, w.car.Close())
	}
	if w.packet != nil {
		errs = append(errs, w.packet.Close())
	}
	if w.links != nil {
		errs = append(errs, w.links.Close())
	}
	if w.rules != nil {
		errs = append(errs, w.rules.Close())
	}
	if w.kernel != nil {
		errs = append(errs, w.kernel.Close())
	}
	return errors.Join(append(errs, w.keeper.conn.Close())...)
}

// serve serves until ctx ends or a part fails.
func (w *joinedWorker) serve(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.car.Serve(ctx, w.listeners) })
	group.Go(func() error { return w.packet.Run(ctx) })
	group.Go(func() error { return w.rules.Run(ctx, func(what string) { offer(w.changed, what) }) })
	group.Go(func() error {
		if w.resumed {
			if err := w.begin(); err != nil {
				return err
			}
		}
		return w.attend(ctx)
	})
	return group.Wait()
}

// attend looks after what is in force.
func (w *joinedWorker) attend(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if w.socket != nil {
		// Whoever enters the container as uid 0, though we may have another.
		var owner uint32
		server, err := control.New(control.Config{
			Owner:  &owner,
			Engine: w.car, Log: w.car.Log(), Prober: w,
			Access: control.Access{UID: w.Config.ControlUID, GID: w.Config.ControlGID},
		})
		if err != nil {
			return err
		}
		group.Go(func() error { return server.Serve(ctx, w.socket) })
	}
	group.Go(func() error { return w.links.Run(ctx, w.sawLink) })
	group.Go(func() error { return w.watch(ctx) })
	group.Go(func() error { return w.keepSchedule(ctx) })
	return group.Wait()
}
