//go:build linux

package proxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"
)

// BenchmarkSniffAndDecide reads a ClientHello and judges it: what a connection
// costs before it is dialled.
func BenchmarkSniffAndDecide(b *testing.B) {
	hello := clientHelloOf(b, &tls.Config{ServerName: "allowed.test"})
	r := newRig(b, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	there, here := tcpPair(b)
	defer there.Close()
	defer here.Close()
	pol := r.policy.Load()
	b.ReportAllocs()
	for b.Loop() {
		c := &client{p: r.proxy, tcp: here, in: bytes.NewReader(hello)}
		s := c.sniff(true, time.Second, false)
		if v := r.proxy.judge(pol, c.tlsSubject(s.hello)); v.Reason != "rule" {
			b.Fatal(v)
		}
		c.forget()
	}
}

// BenchmarkConnection opens, greets and closes connections through the proxy;
// compare with "direct" for what is added. The client and the origin are in this
// process, so their time counts in both.
func BenchmarkConnection(b *testing.B) {
	hello := clientHelloOf(b, &tls.Config{ServerName: "allowed.test"})
	answer := func(c *net.TCPConn) {
		if _, err := io.ReadFull(c, make([]byte, len(hello))); err == nil {
			c.Write([]byte{1})
		}
	}
	run := func(b *testing.B, at string) {
		one := make([]byte, 1)
		cpu := cpuSeconds(b)
		for b.Loop() {
			c, err := net.Dial("tcp", at)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.Write(hello); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, one); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
		b.ReportMetric((cpuSeconds(b)-cpu)/float64(b.N)*1e6, "cpu-µs/op")
		b.ReportAllocs()
	}
	r := newRig(b, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.origin("203.0.113.10:443", answer)
	at := r.transparent("203.0.113.10:443")
	b.Run("direct", func(b *testing.B) {
		for _, real := range r.origins {
			run(b, real)
		}
	})
	b.Run("proxied", func(b *testing.B) { run(b, at) })
}
