package dnsfilter

import (
	"net"
	"testing"
)

// tally is a connection that notes that it was closed.
type tally struct {
	net.Conn
	closed *int
}

func (t tally) Close() error {
	*t.closed++
	return nil
}

func TestASourcePortIsRetired(t *testing.T) {
	var p ports
	dialled, closed := 0, 0
	dial := func() (net.Conn, error) {
		dialled++
		return tally{closed: &closed}, nil
	}
	ask := func(broken bool) {
		t.Helper()
		conn, slot, _, err := p.take(7, dial)
		if err != nil || slot != 7 {
			t.Fatalf("slot %d, %v", slot, err)
		}
		if err := p.give(conn, slot, broken); err != nil {
			t.Fatal(err)
		}
	}
	for range portLife {
		ask(false)
	}
	if dialled != 1 || closed != 1 {
		t.Fatalf("after %d questions: %d dialled, %d closed", portLife, dialled, closed)
	}
	ask(true)
	ask(false)
	if dialled != 3 || closed != 2 {
		t.Errorf("a broken socket was used again: %d dialled, %d closed", dialled, closed)
	}
	p.close()
	if closed != 3 {
		t.Errorf("%d closed at the end", closed)
	}
}

func TestABusySourcePortIsNotShared(t *testing.T) {
	var p ports
	closed := 0
	seen := map[int]bool{}
	for i := range portSlots + 1 {
		conn, slot, reused, err := p.take(0, func() (net.Conn, error) { return tally{closed: &closed}, nil })
		if err != nil || reused || slot >= 0 && seen[slot] {
			t.Fatalf("question %d: slot %d, reused %v, %v", i, slot, reused, err)
		}
		if seen[slot] = true; i == portSlots && slot != -1 {
			t.Errorf("with every slot busy, slot %d", slot)
		}
		if slot == -1 {
			if err := p.give(conn, slot, false); err != nil || closed != 1 {
				t.Errorf("the one beside the pool was kept: %v", err)
			}
		}
	}
}
