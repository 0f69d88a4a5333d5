package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
)

// manyTargets is an allowlist of n targets: names, wildcards, addresses, ranges.
func manyTargets(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"network_mode":"allowlist","allowed_hosts":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		switch i % 4 {
		case 0:
			fmt.Fprintf(&b, `"host-%d.zone-%d.example:443"`, i, i%97)
		case 1:
			fmt.Fprintf(&b, `"*.zone-%d.example"`, i)
		case 2:
			fmt.Fprintf(&b, `"10.%d.%d.%d"`, i>>16&255, i>>8&255, i&255)
		case 3:
			fmt.Fprintf(&b, `"2001:db8:%x:%x::/64"`, i>>16, i&0xffff)
		}
	}
	b.WriteString("]}")
	return []byte(b.String())
}

func sizes(b *testing.B, run func(b *testing.B, n int)) {
	for _, n := range []int{10, 1_000, 100_000} {
		b.Run(fmt.Sprintf("targets=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			run(b, n)
		})
	}
}

func BenchmarkParse(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		data := manyTargets(n)
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, _, err := Parse(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCompile(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		d := mustParse(b, string(manyTargets(n)))
		for b.Loop() {
			Compile(d, Options{})
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	for about, r := range map[string]Request{
		"name-allowed":    {Name: "host-4.zone-4.example", Port: 443},
		"name-unlisted":   {Name: "a.b.c.d.unlisted.example", Port: 443},
		"address-allowed": {Addr: netip.MustParseAddr("10.0.0.2"), Port: 443},
		"address-v6":      {Addr: netip.MustParseAddr("2001:db8:ffff:1::1"), Port: 443},
		"question":        {Kind: KindQuestion, Name: "x.zone-5.example", QType: 1},
	} {
		b.Run(about, func(b *testing.B) {
			sizes(b, func(b *testing.B, n int) {
				c := Compile(mustParse(b, string(manyTargets(n))), Options{})
				for b.Loop() {
					c.Decide(r)
				}
			})
		})
	}
}

// 100,000 targets parse and compile in seconds and tens of megabytes, also where
// all are ports of one name, the hardest for a look-up by host.
func TestAHundredThousandTargets(t *testing.T) {
	onePort := func(n int) []byte {
		var b strings.Builder
		b.WriteString(`{"network_mode":"allowlist","allowed_hosts":[`)
		for i := range n {
			fmt.Fprintf(&b, `"a.test:%d",`, 65535-i%65535)
		}
		b.WriteString(`"b.test"]}`)
		return []byte(b.String())
	}
	for about, data := range map[string][]byte{"of every kind": manyTargets(100_000), "on one name": onePort(100_000)} {
		t.Run(about, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := time.Now()
			c := Compile(mustParse(t, string(data)), Options{})
			took := time.Since(start)
			runtime.GC()
			runtime.ReadMemStats(&after)
			held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			t.Logf("%v, %d MB held, %d MB allocated on the way", took, held>>20, (after.TotalAlloc-before.TotalAlloc)>>20)
			// Well under a second on its own; ten times that, under the race detector, on
			// a machine that is busy.
			if took > 60*time.Second {
				t.Errorf("took %v", took)
			}
			if held > 80<<20 {
				t.Errorf("holds %d MB", held>>20)
			}
			runtime.KeepAlive(c)
		})
	}
}
