package audit

import (
	"net/netip"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/exeat/exeat/policy"
)

// wholeEvent has every member set, each to something of its own.
func wholeEvent(n int) Event {
	e := Event{
		Time: time.Unix(1_800_000_000, int64(n)), Since: time.Unix(1_700_000_000, int64(n)),
		Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(n)}), 9),
	}
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case !f.IsZero():
		case f.CanUint():
			f.SetUint(1)
		case f.CanInt():
			f.SetInt(int64(n + i))
		default:
			f.SetString(v.Type().Field(i).Name + string(rune('a'+n%7)))
		}
	}
	return e
}

func TestTheRingGivesBackEveryMember(t *testing.T) {
	for _, size := range []uint64{1, 7, chunkSize, chunkSize + 1, 3 * chunkSize} {
		r := ring{size: size}
		var pushed []Event
		for n := range 1000 {
			for _, e := range []Event{wholeEvent(n), {Time: time.Unix(5, 0), Kind: KindReady}} {
				r.push(&e)
				pushed = append(pushed, e)
			}
			for id := r.oldest() + 1; id <= r.last; id++ {
				if n%100 == 0 && r.get(id) != pushed[id-1] {
					t.Fatalf("size %d, event %d: got %+v, want %+v", size, id, r.get(id), pushed[id-1])
				}
			}
		}
		if r.last-r.oldest() != size {
			t.Errorf("%d events in a ring of %d", r.last-r.oldest(), size)
		}
	}
}

// A sandbox makes as many of these as the log allows for.
func TestWhatIsKeptInThousandsIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(cell{}); size > 128 {
		t.Errorf("a cell has %d bytes, want at most 128", size)
	}
	if size := unsafe.Sizeof(kept{}); size > 112 {
		t.Errorf("an event in the ring has %d bytes, want at most 112", size)
	}
}

func TestCellsOfOneHashAreKeptApart(t *testing.T) {
	c := newCounters(3)
	e := func(name string, v policy.Verdict) *Event {
		return &Event{Kind: KindDecision, Name: name, Verdict: v, Time: time.Unix(1, 0)}
	}
	var all []*cell
	for _, name := range []string{"a.test", "b.test", "c.test"} {
		at, _ := c.add(e(name, policy.Deny))
		all = append(all, at)
	}
	clear(c.cells) // as if they had one
	for _, hashed := range all {
		for i, at := range all {
			all[i].next = nil
			if i > 0 {
				at.next = all[i-1]
			}
		}
		c.cells = map[uint64]*cell{c.hash(&hashed.key): all[2]}
		c.size = 3
		c.remove(hashed)
		left := 0
		for at := range c.all {
			left++
			if at == hashed {
				t.Errorf("%s is still there", at.name)
			}
		}
		if left != 2 {
			t.Errorf("without %s there are %d, want 2", hashed.name, left)
		}
	}
}
