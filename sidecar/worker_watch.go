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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/firewall"
)

// lookEvery is how often the namespace's addresses are looked at, and flowsEvery how
// often the few flows are tried that readiness rests on.
const (
	lookEvery  = 2 * time.Second
	flowsEvery = 30 * time.Second
)

// takenUID is why an attack locks down.
const takenUID = "a packet bore our user id without our secrets: somebody in the sandbox took it"

// watch earns readiness, and takes it away again: it probes the rules, and acts
// on what the watches see. It ends with ctx, or when the worker must start anew.
func (w *joinedWorker) watch(ctx context.Context) error {
	w.check(ctx)
	probes := time.NewTicker(min(w.Config.Schedule, flowsEvery))
	defer probes.Stop()
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-probes.C:
			w.check(ctx)
		case now := <-looks.C:
			if err := w.claims.expire(now); err != nil {
				w.complain("the sockets of our probes: " + err.Error())
			}
			if err := w.lookAround(); err != nil {
				w.complain("the namespace's addresses can't be read: " + err.Error())
			}
			if w.V4.TCP == 0 && familyThere(loopbacks[0]) || w.V6.TCP == 0 && familyThere(loopbacks[1]) {
				return ErrFamilies
			}
		case what := <-w.changed:
			w.reload(ctx, what)
		case <-w.attack:
			// Each has its event; what follows is the same, as fast as they may come.
			if w.car.Locked() != takenUID {
				w.car.Lockdown(ctx, takenUID)
			}
		case what := <-w.strange:
			w.car.Lockdown(ctx, what)
		}
	}
}

// reload puts our rules back after somebody else has changed them; and since
// there may have been a moment without, everything is denied until the next
// swap (bypass.md B47).
func (w *joinedWorker) reload(ctx context.Context, what string) {
	if err := w.fw.Apply(); err != nil {
		what += "; and the rules could not be put back: " + err.Error()
	}
	w.car.Lockdown(ctx, what)
}

// check runs the probe and says what came of it.
func (w *joinedWorker) check(ctx context.Context) {
	amid, err := w.prove(ctx)
	switch {
	case ctx.Err() != nil:
	case err == nil && amid && w.probed.Load() != nil:
		// What was found before may have been what could not be tried now.
	case err == nil:
		w.probed.Store(nil)
		w.car.SetReady(true, "rules loaded, listeners bound, probes behave")
	default:
		why := "the rules do not hold: " + oneLine(err)
		if w.probed.Swap(&why) != nil && w.Config.OnBreach == BreachReport {
			return // it has been said
		}
		w.car.SetReady(false, why)
		if w.Config.OnBreach == BreachDeny {
			w.car.Lockdown(ctx, why)
			return
		}
		w.car.Log().Record(audit.Event{Kind: audit.KindBreach, Message: why})
	}
}

// prove probes, more than once where what must pass did not. amid says that swaps
// kept it from trying everything.
func (w *joinedWorker) prove(ctx context.Context) (amid bool, err error) {
	for attempt := 1; ; attempt++ {
		results := w.probe.run(ctx)
		err := verdict(results)
		if err == nil || passed(results) || attempt == probeAttempts || !wait(ctx, probeTimeout/4) {
			return anyAmid(results), err
		}
	}
}

// health gives the parts besides the policy.
func (w *joinedWorker) health() []api.Health {
	probe := api.Health{Part: "probe", OK: true}
	if why := w.catalogue.leaked(); why != "" {
		probe.OK, probe.Message = false, why
	}
	if why := w.probed.Load(); why != nil {
		probe.OK, probe.Message = false, *why
	}
	return []api.Health{probe, w.guard.health()}
}

// familyThere says whether the namespace has the loopback address.
func familyThere(loopback netip.Addr) bool {
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		return false
	}
	return ln.Close() == nil
}

// lookAround learns the namespace's own addresses.
func (w *joinedWorker) lookAround() error {
	own, err := interfaceAddrs()
	if err != nil {
		return err
	}
	w.local.Store(&own)
	return nil
}

// isLocal says that an address is the namespace's own.
func (w *joinedWorker) isLocal(a netip.Addr) bool {
	own := w.local.Load()
	if own == nil {
		return false
	}
	_, is := (*own)[a.Unmap()]
	return is
}

// linkGuard knows which links are safe: those that the keeper found, and those
// that the rules hold without more.
type linkGuard struct {
	// netRaw: the sandbox could send through a new link's AF_XDP queues unseen,
	// which only the keeper could have held when it had the privilege.
	netRaw bool
	// byName: the rules hook each link by its name.
	byName bool

	mu      sync.Mutex
	known   map[int]string
	strange map[int]string
}

func newLinkGuard(h handover) *linkGuard {
	byName := has(h.Features.Egress) && !has(h.Features.AnyLink)
	return &linkGuard{netRaw: h.Config.NetRaw, byName: byName, known: h.Links, strange: map[int]string{}}
}

// linkChange is what follows from a link that was seen. The zero value is nothing.
type linkChange struct {
	// unsafe: nothing keeps the sandbox from sending through it.
	unsafe bool
	// hook: the rules must be told of its name.
	hook bool
	// was is the name that it had, and that the rules knew it by.
	was string
}

// saw notes a link.
func (g *linkGuard) saw(l firewall.Link) linkChange {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.Gone {
		delete(g.known, l.Index)
		delete(g.strange, l.Index)
		return linkChange{}
	}
	was, known := g.known[l.Index]
	switch {
	case known && (was == l.Name || !g.byName):
		return linkChange{}
	case known:
		g.known[l.Index] = l.Name
		return linkChange{hook: true, was: was}
	case !g.netRaw:
		g.known[l.Index] = l.Name
		return linkChange{hook: g.byName}
	}
	_, seen := g.strange[l.Index]
	g.strange[l.Index] = l.Name
	return linkChange{unsafe: true, hook: g.byName && !seen}
}

func (g *linkGuard) names() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []string
	for _, links := range []map[int]string{g.known, g.strange} {
		for _, name := range links {
			if name != "lo" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (g *linkGuard) health() api.Health {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := api.Health{Part: "links", OK: len(g.strange) == 0}
	for _, name := range g.strange {
		h.Message = strangeLink(name)
	}
	return h
}

func strangeLink(name string) string {
	return fmt.Sprintf("link %s appeared after the start, and a sandbox with NET_RAW could send through it unseen; it was set down: start the sidecar anew, or drop NET_RAW from the sandbox and say --sandbox-net-raw=no", name)
}

// sawLink acts on a link that is there, or is new (bypass.md B21).
func (w *joinedWorker) sawLink(l firewall.Link) {
	change := w.guard.saw(l)
	if change.unsafe {
		why := strangeLink(l.Name)
		if err := setDown(l.Name); err != nil {
			why += "; setting it down failed: " + err.Error()
		}
		offer(w.strange, why)
	}
	if change.was != "" {
		offer(w.strange, fmt.Sprintf("link %s was renamed to %s, which took it out from under the rules for a moment", change.was, l.Name))
	}
	if !change.hook {
		return
	}
	names := w.guard.names()
	if err := w.fw.Reconfigure(func(in *firewall.JoinedInput) { in.Links = names }); err != nil {
		offer(w.strange, fmt.Sprintf("link %s could not be put under the rules: %v", l.Name, err))
		return
	}
	w.complain("link " + l.Name + " is new and was put under the rules")
}

// setDown sets a link down: nothing sends through it then, whatever hook it
// passes by (netdevice(7)).
func setDown(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = os.NewSyscallError("ioctl(SIOCGIFFLAGS)", unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request))
	}
	if err == nil && request.Uint16()&unix.IFF_UP != 0 {
		request.SetUint16(request.Uint16() &^ unix.IFF_UP)
		err = os.NewSyscallError("ioctl(SIOCSIFFLAGS)", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request))
	}
	return errors.Join(err, unix.Close(fd))
}
