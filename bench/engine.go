//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/proxy"
)

// swapped is what the engine prints of a swap.
type swapped struct {
	Revoked int     `json:"revoked"`
	TookUS  float64 `json:"took_us"`
}

// runEngine is our side while the lab measures packages and not the product: the
// proxy under an allowlist of one name. SIGUSR1 swaps to no-network, SIGUSR2 back.
func runEngine(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("bench engine", flag.ContinueOnError)
	listen := flags.String("listen", "", "address to listen at for redirected connections")
	names := flags.String("dns", "", "address to answer questions at")
	upstream := flags.String("upstream", "", "resolver that is asked")
	resolve := flags.String("resolve", "", "the address of "+originName)
	targets := flags.Int("targets", 0, "how many targets more the policy has")
	if err := flags.Parse(args); err != nil {
		return err
	}
	address, err := netip.ParseAddr(*resolve)
	if err != nil {
		return fmt.Errorf("-resolve: %w", err)
	}
	var inForce atomic.Pointer[policy.Compiled]
	inForce.Store(allowlist(1, *targets))
	log := audit.New(audit.Config{Writer: io.Discard})
	table := attribution.New(time.Hour, time.Now)
	// As the resolver does when it answers a client that is about to connect.
	table.Add(originName, []netip.Addr{address}, time.Hour)
	flows := proxy.NewFlows(log)
	served := make(chan error, 2)
	if *listen != "" {
		p, err := proxy.New(proxy.Config{
			Policy: &inForce, Log: log, Flows: flows, Names: table,
			Resolve: func(context.Context, string, proxy.Family) ([]netip.Addr, error) {
				return []netip.Addr{address}, nil
			},
		})
		if err != nil {
			return err
		}
		ln, err := net.Listen("tcp4", *listen)
		if err != nil {
			return err
		}
		go func() { served <- p.ServeTransparent(ctx, ln.(*net.TCPListener)) }()
	}
	if *names != "" {
		if err := serveQuestions(ctx, *names, *upstream, dnsfilter.Config{Policy: &inForce, Log: log, Names: table}, served); err != nil {
			return err
		}
	}
	swaps := make(chan os.Signal, 1)
	signal.Notify(swaps, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(swaps)
	for generation := uint64(2); ; generation++ {
		select {
		case err := <-served:
			flows.Close()
			return errors.Join(err, log.Close())
		case s := <-swaps:
			next := allowlist(generation, *targets)
			if s == syscall.SIGUSR1 {
				next = policy.Compile(policy.Document{Mode: policy.ModeNoNetwork}, policy.Options{Generation: generation})
			}
			start := time.Now()
			inForce.Store(next)
			r := swapped{Revoked: flows.Rejudge(next)}
			r.TookUS = float64(time.Since(start).Nanoseconds()) / 1e3
			if err := json.NewEncoder(stdout).Encode(r); err != nil {
				return err
			}
		}
	}
}

// serveQuestions starts the resolver.
func serveQuestions(ctx context.Context, address, upstream string, c dnsfilter.Config, served chan<- error) error {
	u, err := dnsfilter.ParseUpstream(upstream)
	if err != nil {
		return err
	}
	c.Upstreams = []dnsfilter.Upstream{u}
	// Every miss is a new name below a wildcard, which the budget is there to stop.
	c.Budget = dnsfilter.Budget{Names: 1 << 40, Bytes: 1 << 40}
	server, err := dnsfilter.New(c)
	if err != nil {
		return err
	}
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	go func() { served <- server.Serve(ctx, []net.PacketConn{conn}, nil) }()
	return nil
}

// allowlist allows the origin's name, those of the zone, and so many others.
func allowlist(generation uint64, more int) *policy.Compiled {
	allowed := []policy.Target{{Name: originName}, {Name: "bench.test", Wildcard: true}}
	for i := range more {
		allowed = append(allowed, policy.Target{Name: fmt.Sprintf("host-%d.many.test", i)})
	}
	return policy.Compile(policy.Document{Mode: policy.ModeAllowlist, Allowed: allowed}, policy.Options{Generation: generation})
}
