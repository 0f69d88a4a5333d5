package attribution

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"
)

var (
	v4    = netip.MustParseAddr("192.0.2.1")
	v6    = netip.MustParseAddr("2001:db8::1")
	other = netip.MustParseAddr("198.51.100.1")
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func TestNames(t *testing.T) {
	const ttl = time.Minute
	tests := map[string]struct {
		do   func(*Table, *clock)
		want []string
	}{
		"an address that was never handed out has none": {
			func(table *Table, _ *clock) { table.Add("a.test", []netip.Addr{other}, ttl) }, nil,
		},
		"the most recent comes first": {
			func(table *Table, _ *clock) {
				table.Add("a.test", []netip.Addr{v4, v6}, ttl)
				table.Add("b.test", []netip.Addr{v4}, ttl)
			},
			[]string{"b.test", "a.test"},
		},
		"handed out again it comes first again": {
			func(table *Table, _ *clock) {
				table.Add("a.test", []netip.Addr{v4}, ttl)
				table.Add("b.test", []netip.Addr{v4}, ttl)
				table.Add("a.test", []netip.Addr{v4}, ttl)
			},
			[]string{"a.test", "b.test"},
		},
		"it lives through its TTL and the grace": {
			func(table *Table, c *clock) {
				table.Add("a.test", []netip.Addr{v4}, ttl)
				c.t = c.t.Add(ttl + Grace - 1)
			},
			[]string{"a.test"},
		},
		"and no longer": {
			func(table *Table, c *clock) {
				table.Add("a.test", []netip.Addr{v4}, ttl)
				c.t = c.t.Add(ttl + Grace)
			},
			nil,
		},
		"only what has expired goes": {
			func(table *Table, c *clock) {
				table.Add("a.test", []netip.Addr{v4}, ttl)
				c.t = c.t.Add(ttl)
				table.Add("b.test", []netip.Addr{v4}, ttl)
				c.t = c.t.Add(Grace)
			},
			[]string{"b.test"},
		},
		"a shorter TTL does not shorten": {
			func(table *Table, c *clock) {
				table.Add("a.test", []netip.Addr{v4}, time.Hour)
				table.Add("a.test", []netip.Addr{v4}, 0)
				c.t = c.t.Add(Grace + time.Minute)
			},
			[]string{"a.test"},
		},
		"an IPv4-mapped address is the IPv4 address": {
			func(table *Table, _ *clock) {
				table.Add("a.test", []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.1")}, ttl)
			},
			[]string{"a.test"},
		},
		"a flow holds it": {
			func(table *Table, c *clock) {
				table.Add("a.test", []netip.Addr{v4}, ttl)
				table.Add("b.test", []netip.Addr{v4}, ttl)
				table.Hold(v4, "a.test")
				c.t = c.t.Add(48 * time.Hour)
			},
			[]string{"a.test"},
		},
		"the last release lets it go": {
			func(table *Table, c *clock) {
				table.Add("a.test", []netip.Addr{v4}, ttl)
				one, two := table.Hold(v4, "a.test"), table.Hold(v4, "a.test")
				c.t = c.t.Add(48 * time.Hour)
				one()
				one()
				if got := table.Names(v4); len(got) != 1 {
					panic("gone while held")
				}
				two()
			},
			nil,
		},
		"a release before the TTL is over changes nothing": {
			func(table *Table, _ *clock) {
				table.Add("a.test", []netip.Addr{v4}, ttl)
				table.Hold(v4, "a.test")()
			},
			[]string{"a.test"},
		},
		"holding what is not there makes it, for as long as it is held": {
			func(table *Table, _ *clock) { table.Hold(v4, "a.test") },
			[]string{"a.test"},
		},
		"and releasing it removes it": {
			func(table *Table, _ *clock) { table.Hold(v4, "a.test")() }, nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
			table := New(Grace, c.now)
			tt.do(table, c)
			if got := table.Names(v4); !slices.Equal(got, tt.want) {
				t.Errorf("names %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNamesThatWereGivenOutNeverChange(t *testing.T) {
	table := New(Grace, nil)
	table.Add("a.test", []netip.Addr{v4}, time.Minute)
	given := table.Names(v4)
	table.Add("b.test", []netip.Addr{v4}, time.Minute)
	table.Add("a.test", []netip.Addr{v4}, time.Minute)
	if len(given) != 1 || given[0] != "a.test" {
		t.Errorf("given out before, now %q", given)
	}
}

func TestAll(t *testing.T) {
	c := &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	table := New(Grace, c.now)
	table.Add("old.test", []netip.Addr{other}, 0)
	table.Add("held.test", []netip.Addr{v6}, 0)
	table.Hold(v6, "held.test")
	c.t = c.t.Add(2 * Grace)
	start := c.t
	table.Add("new.test", []netip.Addr{v4}, time.Minute)
	got := map[string]time.Duration{}
	for e := range table.All() {
		got[e.Name] = e.Expires.Sub(start)
		table.Names(e.Addr) // the table may be used meanwhile
	}
	if len(got) != 2 || got["new.test"] != Grace+time.Minute || got["held.test"] != Grace {
		t.Errorf("all %v", got)
	}
	for range table.All() {
		break
	}
}

func TestTheTableIsBounded(t *testing.T) {
	table := New(Grace, nil)
	table.limit = 100
	release := table.Hold(v6, "held.test")
	defer release()
	for i := range 1000 {
		table.Add("a.test", []netip.Addr{netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})}, time.Minute)
	}
	n := 0
	for range table.All() {
		n++
	}
	if n != 100 || len(table.addrs) != 100 {
		t.Errorf("%d entries of %d addresses, want 100", n, len(table.addrs))
	}
	if len(table.Names(v6)) != 1 {
		t.Error("the held entry gave way")
	}
	if len(table.Names(netip.AddrFrom4([4]byte{198, 51, 999 >> 8, 999 & 255}))) != 1 {
		t.Error("the newest entry gave way")
	}
}

func TestTheNamesOfAnAddressAreBounded(t *testing.T) {
	table := New(Grace, nil)
	table.Hold(v4, "held.test")
	for i := range 1000 {
		table.Add(fmt.Sprintf("n%d.test", i), []netip.Addr{v4}, time.Minute)
	}
	got := table.Names(v4)
	if len(got) != maxNames || got[0] != "n999.test" || !slices.Contains(got, "held.test") {
		t.Errorf("%d names, the first %q", len(got), got[0])
	}
	if table.age.Len() != maxNames {
		t.Errorf("%d entries, want %d", table.age.Len(), maxNames)
	}
}

func TestWhatIsOverIsSwept(t *testing.T) {
	c := &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	table := New(Grace, c.now)
	for i := range 100 {
		table.Add("a.test", []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})}, 0)
	}
	c.t = c.t.Add(Grace)
	for range 50 {
		table.Add("b.test", []netip.Addr{v4}, 0)
	}
	if n := table.age.Len(); n != 1 {
		t.Errorf("%d entries are left, want 1", n)
	}
}

func TestTableIsRaceClean(t *testing.T) {
	table := New(time.Millisecond, nil)
	table.limit = 50
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				addr := netip.AddrFrom4([4]byte{198, 51, 100, byte(i % 60)})
				table.Add(fmt.Sprintf("n%d.test", g), []netip.Addr{addr}, 0)
				release := table.Hold(addr, "held.test")
				if len(table.Names(addr)) == 0 {
					t.Error("a held address has no name")
				}
				release()
				if i%500 == 0 {
					for range table.All() {
						continue
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestNamesDoesNotAllocate(t *testing.T) {
	table := New(Grace, nil)
	table.Add("a.test", []netip.Addr{v4}, time.Minute)
	if n := testing.AllocsPerRun(100, func() { table.Names(v4) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNames(b *testing.B) {
	table := New(Grace, nil)
	for i := range 10_000 {
		table.Add("a.test", []netip.Addr{netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})}, time.Minute)
	}
	table.Add("a.test", []netip.Addr{v4}, time.Minute)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			table.Names(v4)
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	table := New(Grace, nil)
	addrs := make([]netip.Addr, 4)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for j := range addrs {
			addrs[j] = netip.AddrFrom4([4]byte{byte(i >> 16), byte(i >> 8), byte(i), byte(j)})
		}
		table.Add("a.test", addrs, time.Minute)
	}
}
