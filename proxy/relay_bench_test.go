//go:build linux

package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// cpuSeconds is what this process has used, user and system.
func cpuSeconds(t testing.TB) float64 {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkRelayBulk moves 256 MiB an operation; client and server are in this
// process too, so the processor seconds of "direct" are the floor of the others.
func BenchmarkRelayBulk(b *testing.B) {
	ways := []struct {
		name string
		join func(b *testing.B, a, z *net.TCPConn)
	}{
		{"direct", nil},
		{"relay", func(b *testing.B, a, z *net.TCPConn) {
			flows, _ := newTestFlows(b)
			Start(flows.Register(testFlow(), nil), a, z, func(error) {})
		}},
		{"io.Copy", func(b *testing.B, a, z *net.TCPConn) {
			go io.Copy(a, z)
			go io.Copy(z, a)
		}},
	}
	for _, streams := range []int{1, 4} {
		for _, way := range ways {
			b.Run(fmt.Sprintf("%s/streams=%d", way.name, streams), func(b *testing.B) {
				benchBulk(b, streams, way.join)
			})
		}
	}
}

func benchBulk(b *testing.B, streams int, join func(b *testing.B, a, z *net.TCPConn)) {
	const size = 256 << 20
	var clients, servers []*net.TCPConn
	for range streams {
		client, server := tcpPair(b)
		if join != nil {
			a := server
			var z *net.TCPConn
			z, server = tcpPair(b)
			join(b, a, z)
		}
		defer client.Close()
		defer server.Close()
		clients, servers = append(clients, client), append(servers, server)
	}
	b.SetBytes(size)
	cpu := cpuSeconds(b)
	for b.Loop() {
		var done sync.WaitGroup
		for i := range streams {
			done.Go(func() {
				chunk := make([]byte, 256<<10)
				for left := size / streams; left > 0; left -= len(chunk) {
					if _, err := servers[i].Write(chunk); err != nil {
						b.Error(err)
						return
					}
				}
			})
			done.Go(func() {
				chunk := make([]byte, 256<<10)
				for left := size / streams; left > 0; {
					n, err := clients[i].Read(chunk)
					if err != nil {
						b.Error(err)
						return
					}
					left -= n
				}
			})
		}
		done.Wait()
	}
	b.ReportMetric((cpuSeconds(b)-cpu)/(float64(b.N)*size/1e9), "cpu-s/GB")
}

// BenchmarkRoundTrip sends a byte there and back.
func BenchmarkRoundTrip(b *testing.B) {
	pingPong := func(b *testing.B, client, server *net.TCPConn) {
		go io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server})
		one := make([]byte, 1)
		cpu := cpuSeconds(b)
		for b.Loop() {
			if _, err := client.Write(one); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(client, one); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric((cpuSeconds(b)-cpu)/float64(b.N)*1e6, "cpu-µs/op")
	}
	b.Run("direct", func(b *testing.B) {
		client, server := tcpPair(b)
		defer client.Close()
		defer server.Close()
		pingPong(b, client, server)
	})
	b.Run("relay", func(b *testing.B) {
		flows, _ := newTestFlows(b)
		r := startRelayed(b, flows)
		pingPong(b, r.client, r.server)
	})
	b.Run("io.Copy", func(b *testing.B) {
		client, a := tcpPair(b)
		z, server := tcpPair(b)
		go io.Copy(a, z)
		go io.Copy(z, a)
		defer client.Close()
		defer server.Close()
		pingPong(b, client, server)
	})
}

// BenchmarkRelayIdle opens 2,000 tunnels that stay silent: what each costs of
// heap, stack and resident memory. Only the relay's own share is counted, that is
// what is left when the sockets of client and server are raw descriptors.
func BenchmarkRelayIdle(b *testing.B) {
	const tunnels = 2000
	flows, _ := newTestFlows(b)
	ln := loopbackListener(b)
	warm, err := newRelayed(flows, ln)
	if err != nil {
		b.Fatal(err)
	}
	defer warm.client.Close()
	defer warm.server.Close()
	for b.Loop() {
		before, rssBefore := memory(), rss(b)
		var held []int
		for range tunnels {
			client, a := rawPair(b, ln)
			server, z := rawPair(b, ln)
			held = append(held, client, server)
			Start(flows.Register(testFlow(), nil), a, z, func(error) {})
		}
		after, rssAfter := memory(), rss(b)
		b.ReportMetric(float64(after-before)/tunnels, "B/tunnel")
		b.ReportMetric(float64(rssAfter-rssBefore)/tunnels, "rss-B/tunnel")
		for _, fd := range held {
			closeDescriptor(fd)
		}
	}
}

// rawPair is tcpPair with the far side taken off the runtime.
func rawPair(b *testing.B, ln *net.TCPListener) (far int, near *net.TCPConn) {
	b.Helper()
	dialled, near, err := newTCPPair(ln)
	if err != nil {
		b.Fatal(err)
	}
	var e end
	if err := errors.Join(e.adopt(dialled), e.detach()); err != nil || e.borrowed {
		b.Fatal("take over:", err)
	}
	return e.fd, near
}

func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

func rss(b testing.TB) uint64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.ParseUint(strings.Fields(string(status))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * uint64(os.Getpagesize())
}

// BenchmarkRejudge5000 revokes 5,000 idle flows that are relayed; the operation
// is Rejudge alone.
func BenchmarkRejudge5000(b *testing.B) {
	const tunnels = 4000 // four descriptors each, of the 20,000 that CI allows
	var cpu float64
	for b.Loop() {
		b.StopTimer()
		flows, events := newTestFlows(b)
		ln := loopbackListener(b)
		var held []int
		for range tunnels {
			client, a := rawPair(b, ln)
			server, z := rawPair(b, ln)
			held = append(held, client, server)
			f := flows.Register(testFlow(), nil)
			Start(f, a, z, f.End)
		}
		before := cpuSeconds(b)
		b.StartTimer()
		if n := flows.Rejudge(nil); n != tunnels {
			b.Fatalf("%d revoked, want %d", n, tunnels)
		}
		b.StopTimer()
		cpu += cpuSeconds(b) - before
		flows.Close()
		if n := len(events.all()); n != tunnels {
			b.Fatalf("%d flows recorded, want %d", n, tunnels)
		}
		for _, fd := range held {
			closeDescriptor(fd)
		}
		b.StartTimer()
	}
	b.ReportMetric(cpu*1e3/float64(b.N)*5000/tunnels, "cpu-ms/5000")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N)*5000/tunnels, "ms/5000")
}
