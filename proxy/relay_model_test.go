//go:build linux

package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// step is one thing that one end of a connection does.
type step struct {
	end  int // clientEnd or upstreamEnd
	what string
	size int
}

func (s step) String() string {
	return fmt.Sprintf("%s %s %d", [2]string{"client", "server"}[s.end], s.what, s.size)
}

// script makes a random life of a connection: writes small and large, reads,
// half-closes, perhaps a reset, in an order that both ends can follow.
func script(source *rand.Rand) []step {
	var steps []step
	var shut [2]bool
	var owed [2]int // bytes on the way to each end
	for range 3 + source.IntN(25) {
		end := source.IntN(2)
		switch k := source.IntN(20); {
		case k < 10 && !shut[end]:
			size := []int{1, 1 + source.IntN(3000), readBuffer, 1 + source.IntN(200<<10)}[source.IntN(4)]
			steps = append(steps, step{end, "write", size})
			owed[1-end] += size
		case k < 16 && owed[end] > 0:
			size := 1 + source.IntN(owed[end])
			steps = append(steps, step{end, "read", size})
			owed[end] -= size
		case k == 16 && !shut[end]:
			steps = append(steps, step{end, "shut", 0})
			shut[end] = true
		case k == 17 && source.IntN(4) == 0:
			// What is on the way at a reset may or may not arrive: let it.
			for e := range owed {
				steps = append(steps, step{e, "read", owed[e]})
			}
			return append(steps, step{end, "reset", 0})
		}
	}
	return steps
}

// play follows the script on a connection and says what each end saw.
func play(steps []step, ends [2]*net.TCPConn) (string, error) {
	var seen [2]bytes.Buffer
	reset := -1
	for i, s := range steps {
		c := ends[s.end]
		var err error
		switch s.what {
		case "write":
			c.SetWriteDeadline(time.Now().Add(10 * time.Second))
			_, err = c.Write(noise()[i : i+s.size])
		case "read":
			c.SetReadDeadline(time.Now().Add(10 * time.Second))
			_, err = io.CopyN(&seen[s.end], c, int64(s.size))
		case "shut":
			err = c.CloseWrite()
		case "reset":
			reset = s.end
			err = errors.Join(c.SetLinger(0), c.Close())
		}
		if err != nil {
			return "", fmt.Errorf("step %d, %v: %w", i, s, err)
		}
	}
	return outcome(ends, seen, reset)
}

// outcome ends a connection in order, unless it was reset, and sums up.
func outcome(ends [2]*net.TCPConn, seen [2]bytes.Buffer, reset int) (string, error) {
	if reset < 0 {
		for _, c := range ends {
			if err := c.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
				return "", err
			}
		}
	}
	var sum strings.Builder
	for i, c := range ends {
		if i == reset {
			continue
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err := io.Copy(&seen[i], c)
		switch {
		case errors.Is(err, syscall.ECONNRESET):
			err = errors.New("reset")
		case err == nil && reset >= 0:
			// It had read the other's end before the reset: a write tells.
			err = writeUntilRefused(c)
		}
		fmt.Fprintf(&sum, "end %d: %d bytes, sum %x, then %v; ", i, seen[i].Len(), checksum(seen[i].Bytes()), err)
	}
	return sum.String(), nil
}

func writeUntilRefused(c *net.TCPConn) error {
	for range 1000 {
		if _, err := c.Write([]byte{0}); err != nil {
			return errors.New("reset")
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("writes still pass")
}

func checksum(b []byte) (sum uint64) {
	for _, c := range b {
		sum = sum*1099511628211 + uint64(c) + 1
	}
	return sum
}

// TestRelayIsLikeADirectConnection plays random scripts over a direct connection
// and through the relay: both ends must see the same.
func TestRelayIsLikeADirectConnection(t *testing.T) {
	flows, events := newTestFlows(t)
	ln := loopbackListener(t)
	const scripts = 400
	for seed := range uint64(scripts) {
		steps := script(rand.New(rand.NewPCG(seed, 3)))
		client, server, err := newTCPPair(ln)
		if err != nil {
			t.Fatal(err)
		}
		want, err := play(steps, [2]*net.TCPConn{client, server})
		client.Close()
		server.Close()
		if err != nil {
			t.Fatalf("script %d, direct: %v\n%v", seed, err, steps)
		}
		r, err := newRelayed(flows, ln)
		if err != nil {
			t.Fatal(err)
		}
		got, err := play(steps, [2]*net.TCPConn{r.client, r.server})
		r.client.Close()
		r.server.Close()
		if err != nil {
			t.Fatalf("script %d, relayed: %v\n%v", seed, err, steps)
		}
		if got != want {
			t.Fatalf("script %d: relayed %s\ndirect %s\n%v", seed, got, want, steps)
		}
		r.wait(t)
	}
	if n := len(events.all()); n != scripts {
		t.Errorf("%d flows recorded, want %d", n, scripts)
	}
}
