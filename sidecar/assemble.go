//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/proxy"
)

// attributionGrace is how long an address stands for a name after the answer's
// TTL has run out: clients keep addresses longer than they should.
const attributionGrace = time.Hour

// Setup is what a shape brings to a sidecar. What the parts have in common
// (policy, log, names, flows) is wired by Assemble and left empty here.
type Setup struct {
	Engine Config
	Log    audit.Config
	DNS    dnsfilter.Config
	Proxy  proxy.Config
	// Drain is how long open flows may take to end once Serve is told to stop.
	Drain time.Duration
	// Quiet says which decisions are not worth a line: those on probes of our own.
	// nil is none.
	Quiet func(audit.Event) bool
}

// Listeners are the sockets that a sidecar serves. It closes them.
type Listeners struct {
	Transparent []*net.TCPListener
	Explicit    []*net.TCPListener
	DNSPackets  []net.PacketConn
	DNSStreams  []net.Listener
}

// Sidecar is a whole engine: the policy in force and the parts that hold it.
type Sidecar struct {
	*Engine
	log   *audit.Log
	names *attribution.Table
	flows *proxy.Flows
	dns   *dnsfilter.Server
	proxy *proxy.Proxy
	drain time.Duration
}

// Assemble wires the parts of a sidecar. Nothing is in force and nothing served
// yet: Begin, then Serve. Close ends it.
func Assemble(s Setup) (*Sidecar, error) {
	inForce := &Policy{}
	var engine *Engine
	s.Log.Phase = func() string { return engine.Phase() }
	log := audit.New(s.Log)
	names := attribution.New(attributionGrace, nil)
	flows := proxy.NewFlows(log)
	recorder := quietLog{log, s.Quiet}

	s.DNS.Policy, s.DNS.Log, s.DNS.Names = inForce, recorder, names
	s.DNS.Kernel = func(ctx context.Context, name string, addrs []netip.Addr, ttl time.Duration) error {
		return engine.Attribute(ctx, name, addrs, ttl+attributionGrace)
	}
	dns, err := dnsfilter.New(s.DNS)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	s.Proxy.Policy, s.Proxy.Log, s.Proxy.Names, s.Proxy.Flows = inForce, recorder, names, flows
	s.Proxy.Pinned = dns.Pinned
	s.Proxy.Resolve = func(ctx context.Context, name string, family proxy.Family) ([]netip.Addr, error) {
		return dns.Lookup(ctx, name, families[family])
	}
	through, err := proxy.New(s.Proxy)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	s.Engine.Log, s.Engine.Names, s.Engine.Flows, s.Engine.Resolver = log, names, flowList{flows}, dns
	s.Engine.Outside = func() []api.Health { return upstreamHealth(dns) }
	if engine, err = New(s.Engine, inForce); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return &Sidecar{Engine: engine, log: log, names: names, flows: flows, dns: dns, proxy: through, drain: s.Drain}, nil
}

// Log is the sidecar's log, for the control API and for what a shape observes.
func (s *Sidecar) Log() *audit.Log { return s.log }

// Names are the sidecar's attributions, for who names packets.
func (s *Sidecar) Names() *attribution.Table { return s.names }

// Serve answers on the listeners until ctx ends or one of them fails for good;
// then every goroutine and flow is gone.
func (s *Sidecar) Serve(ctx context.Context, l Listeners) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, serving := errgroup.WithContext(serving)
	for _, ln := range l.Transparent {
		group.Go(func() error { return s.proxy.ServeTransparent(serving, ln) })
	}
	for _, ln := range l.Explicit {
		group.Go(func() error { return s.proxy.ServeExplicit(serving, ln) })
	}
	group.Go(func() error { return s.dns.Serve(serving, l.DNSPackets, l.DNSStreams) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			s.drainFlows(l)
		case <-serving.Done():
		}
		stop()
		s.flows.Close()
		return nil
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// drainFlows lets no new flows in, and waits for the open ones to end by
// themselves, for as long as they may.
func (s *Sidecar) drainFlows(l Listeners) {
	if s.drain == 0 {
		return
	}
	for _, ln := range append(slices.Clone(l.Transparent), l.Explicit...) {
		// A deadline in the past; closing it would abort what came through it.
		if err := ln.SetDeadline(time.Unix(1, 0)); err != nil {
			s.log.Record(audit.Event{Kind: audit.KindLifecycle, Message: "stop accepting: " + err.Error()})
		}
	}
	deadline := time.NewTimer(s.drain)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for s.flows.Len() > 0 {
		select {
		case <-deadline.C:
			return
		case <-look.C:
		}
	}
}

// quietLog keeps what is not worth a line out of the log.
type quietLog struct {
	*audit.Log
	quiet func(audit.Event) bool
}

// Record records e, unless it is not worth it.
func (l quietLog) Record(e audit.Event) audit.Event {
	if l.quiet != nil && l.quiet(e) {
		return e
	}
	return l.Log.Record(e)
}

// Close ends leases and writes out the log. Serve must have returned.
func (s *Sidecar) Close() error {
	s.Engine.Close()
	return s.log.Close()
}

// families are the proxy's as the resolver has them.
var families = map[proxy.Family]dnsfilter.Family{
	proxy.FamilyAny: dnsfilter.FamilyBoth, proxy.FamilyIPv4: dnsfilter.FamilyIPv4, proxy.FamilyIPv6: dnsfilter.FamilyIPv6,
}

// flowList shows the proxy's flows as the control API does.
type flowList struct{ *proxy.Flows }

// List gives the open flows, oldest first.
func (l flowList) List() []api.Flow {
	open := l.Flows.List()
	flows := make([]api.Flow, 0, len(open))
	for _, f := range open {
		flows = append(flows, api.Flow{
			ID: f.ID, Opened: f.Opened, Client: f.Client, Name: f.Name, Addr: f.Addr, Port: f.Port,
			Protocol: f.Protocol.String(), Channel: f.Channel, Rule: f.Rule, Generation: f.Generation,
			BytesOut: f.BytesOut, BytesIn: f.BytesIn,
		})
	}
	return flows
}

// upstreamHealth says which of the resolver's upstreams answer.
func upstreamHealth(dns *dnsfilter.Server) []api.Health {
	var health []api.Health
	for _, u := range dns.Upstreams() {
		health = append(health, api.Health{Part: "upstream " + u.Upstream, OK: u.Healthy, Message: u.LastError})
	}
	return health
}
