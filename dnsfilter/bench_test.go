package dnsfilter

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
)

func benchQuestion(b testing.TB, name string, qtype uint16) []byte {
	b.Helper()
	var m dns.Msg
	m.SetQuestion(dns.Fqdn(name), qtype)
	m.SetEdns0(1232, false)
	msg, err := m.Pack()
	if err != nil {
		b.Fatal(err)
	}
	return msg
}

// BenchmarkAnswer is one question from bytes to bytes, without sockets.
func BenchmarkAnswer(b *testing.B) {
	for what, name := range map[string]string{"hit": "pin.test", "denied": "other.test"} {
		b.Run(what, func(b *testing.B) {
			s := newBench(b, fuzzPolicy)
			msg := benchQuestion(b, name, dns.TypeA)
			var q question
			if err := q.parse(msg); err != nil {
				b.Fatal(err)
			}
			s.answerLater(context.Background(), &q, netip.Addr{})
			out := make([]byte, 0, maxUDPSize)
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				if err := q.parse(msg); err != nil {
					b.Fatal(err)
				}
				r, done := s.answerNow(&q, now)
				if !done {
					b.Fatal("not at hand")
				}
				out = respond(out[:0], &q, &r, false)
			}
		})
	}
}

// BenchmarkServed asks over real sockets, a batch at a time: client, server and (for
// misses) upstream share the CPU that is measured.
func BenchmarkServed(b *testing.B) {
	upstream, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	origin := &dns.Server{PacketConn: upstream, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		var r dns.Msg
		r.SetReply(m)
		r.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
			A:   net.IPv4(203, 0, 113, 1),
		}}
		if err := w.WriteMsg(&r); err != nil {
			b.Error(err)
		}
	})}
	started := make(chan struct{})
	origin.NotifyStartedFunc = func() { close(started) }
	done := make(chan error, 1)
	go func() { done <- origin.ActivateAndServe() }()
	<-started
	defer func() {
		if err := origin.Shutdown(); err != nil {
			b.Error(err)
		}
		<-done
	}()
	for what, name := range map[string]func(i int) string{
		"hit":    func(int) string { return "pin.test" },
		"denied": func(int) string { return "other.test" },
		"miss":   func(i int) string { return fmt.Sprintf("n%d.m%d.wild.test", i, i%97) },
	} {
		b.Run(what, func(b *testing.B) {
			benchServed(b, upstream.LocalAddr().(*net.UDPAddr).AddrPort(), name)
		})
	}
}

func benchServed(b *testing.B, at netip.AddrPort, name func(int) string) {
	s := newBench(b, fuzzPolicy)
	s.budget.limit = Budget{Names: 1 << 30, Bytes: 1 << 30}
	u := s.newUpstream(Upstream{Addr: at})
	u.ports = new(ports) // as off loopback
	s.upstreams = []*upstream{u}
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, []net.PacketConn{pc}, nil) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			b.Error(err)
		}
	}()
	conn, err := net.Dial("udp4", pc.LocalAddr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer closeQuietly(conn)
	batch := ipv4.NewPacketConn(conn.(net.PacketConn))
	const window = 16
	out, in := make([]ipv4.Message, window), make([]ipv4.Message, window)
	for i := range in {
		in[i].Buffers = [][]byte{make([]byte, 4096)}
	}
	i := 0
	for b.Loop() {
		if i%window == 0 {
			for j := range out {
				out[j].Buffers = [][]byte{benchQuestion(b, name(i+j), dns.TypeA)}
			}
			if _, err := batch.WriteBatch(out, 0); err != nil {
				b.Fatal(err)
			}
			for got := 0; got < window; {
				if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
					b.Fatal(err)
				}
				n, err := batch.ReadBatch(in[:window-got], 0)
				if err != nil {
					b.Fatalf("%d of %d answers: %v", got, window, err)
				}
				got += n
			}
		}
		i++
	}
}
