//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// The questions: a name that is in the cache, names never asked before, and names
// that are denied.
const (
	askHit    = "hit"
	askMiss   = "miss"
	askDenied = "denied"
	zone      = "bench.test."
	denied    = "denied.test."
)

// serveNames answers every A question with one address, until ctx ends.
func serveNames(ctx context.Context, address string) error {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	answer := net.ParseIP(firstOrigin)
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Authoritative = true
		if len(q.Question) == 1 && q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: answer,
			}}
		}
		if err := w.WriteMsg(m); err != nil && ctx.Err() == nil {
			fmt.Println("name server:", err)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.ActivateAndServe() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return errors.Join(server.Shutdown(), <-served)
	}
}

// ask sends n questions of a kind, so many at a time, and times each.
func (l *load) ask(kind string, n, streams int) (loadResult, error) {
	start := strconv.FormatInt(time.Now().UnixNano(), 36) // no name is asked in two runs
	name := func(stream, i int) string {
		switch kind {
		case askMiss:
			return fmt.Sprintf("m%d-%d.%s.%s", stream, i, start, zone)
		case askDenied:
			return fmt.Sprintf("n%d.%s", i%100, denied)
		}
		return "hit." + zone
	}
	var mu sync.Mutex
	var times []time.Duration
	var failed error
	var all sync.WaitGroup
	for stream := range streams {
		all.Go(func() {
			took, err := l.askInTurn(n/streams, func(i int) string { return name(stream, i) }, kind == askDenied)
			mu.Lock()
			defer mu.Unlock()
			times, failed = append(times, took...), errors.Join(failed, err)
		})
	}
	all.Wait()
	if failed != nil {
		return loadResult{}, failed
	}
	return timed(times), nil
}

// askInTurn asks one question after the other from one socket.
func (l *load) askInTurn(n int, name func(i int) string, refused bool) ([]time.Duration, error) {
	conn, err := net.Dial("udp", l.target)
	if err != nil {
		return nil, err
	}
	times := make([]time.Duration, 0, n)
	q := new(dns.Msg).SetQuestion(zone, dns.TypeA)
	q.SetEdns0(1232, false)
	buffer, answer := make([]byte, 512), make([]byte, 2048)
	for i := range n {
		q.Id, q.Question[0].Name = uint16(i), name(i)
		wire, err := q.PackBuffer(buffer)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		start := time.Now()
		if err := conn.SetDeadline(start.Add(5 * time.Second)); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if _, err := conn.Write(wire); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		got, err := conn.Read(answer)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", q.Question[0].Name, err), conn.Close())
		}
		times = append(times, time.Since(start))
		// The header suffices: NXDOMAIN, or an answer (RFC 1035 section 4.1.1).
		if rcode := answer[3] & 15; got < 12 || (rcode == dns.RcodeNameError) != refused || (!refused && answer[7] == 0) {
			return nil, errors.Join(fmt.Errorf("%s: rcode %d, %d answers", q.Question[0].Name, rcode, answer[7]), conn.Close())
		}
	}
	return times, conn.Close()
}

// resolvers are the peers of P5.
func resolvers(l *lab) ([]*peer, error) {
	all := []*peer{
		{
			name: ours, version: "this tree",
			command: []string{l.program, "engine", "-dns", "127.0.0.1:{port}", "-upstream", firstOrigin, "-resolve", firstOrigin},
		},
		unbound(), coredns(),
	}
	var there []*peer
	for i, p := range all {
		p.port = 10100 + i
		p.address = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(p.port)).String()
		installed, err := l.install(p)
		if err != nil {
			return nil, err
		}
		if installed {
			there = append(there, p)
		}
	}
	return there, nil
}

// coredns has a cache, forwards, and denies by a template; it logs nothing.
func coredns() *peer {
	return &peer{
		name: "coredns", command: []string{"coredns", "-quiet", "-conf", "{config}"}, versionFlag: "-version",
		config: denied + `:{port} {
  bind 127.0.0.1
  template ANY ANY {
    rcode NXDOMAIN
    authority "{{ .Zone }} 60 IN SOA ns.{{ .Zone }} hostmaster.{{ .Zone }} (1 60 60 60 60)"
  }
}
.:{port} {
  bind 127.0.0.1
  cache {
    success 100000 3600
  }
  forward . ` + firstOrigin + ` {
    max_concurrent 4096
  }
}
`,
	}
}

func unbound() *peer {
	return &peer{
		name: "unbound", command: []string{"unbound", "-d", "-p", "-c", "{config}"}, versionFlag: "-V",
		config: `server:
  interface: 127.0.0.1@{port}
  username: ""
  chroot: ""
  directory: "{dir}"
  pidfile: ""
  use-syslog: no
  logfile: ""
  verbosity: 0
  num-threads: 1
  module-config: "iterator"
  minimal-responses: yes
  outgoing-range: 4096
  num-queries-per-thread: 2048
  msg-cache-size: 64m
  rrset-cache-size: 128m
  local-zone: "test." nodefault
  local-zone: "` + denied + `" always_nxdomain
remote-control:
  control-enable: no
forward-zone:
  name: "."
  forward-addr: ` + firstOrigin + `
`,
	}
}
