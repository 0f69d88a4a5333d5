//go:build linux

package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

func TestRelayPassesEveryByteBothWaysAtOnce(t *testing.T) {
	for _, c := range []struct {
		name     string
		up, down int
	}{
		{"nothing at all", 0, 0},
		{"one byte up", 1, 0},
		{"one byte down", 0, 1},
		{"exactly a buffer", readBuffer, readBuffer},
		{"a byte over a buffer", readBuffer + 1, readBuffer - 1},
		{"much up, little down", 64 << 20, 300},
		{"little up, much down", 517, 64 << 20},
		{"much both ways", 48 << 20, 48 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			flows, events := newTestFlows(t)
			r := startRelayed(t, flows)
			if err := exchange(r.client, r.server, 7, c.up, c.down); err != nil {
				t.Fatal(err)
			}
			if err := r.wait(t); err != nil {
				t.Errorf("the relay ended with %v, want both sides closed in order", err)
			}
			got := events.all()
			if len(got) != 1 || got[0].BytesOut != uint64(c.up) || got[0].BytesIn != uint64(c.down) {
				t.Errorf("events %+v, want one with %d bytes out and %d in", got, c.up, c.down)
			}
		})
	}
}

func TestRelayOfManyFlowsMixesNothingUp(t *testing.T) {
	flows, events := newTestFlows(t)
	ln := loopbackListener(t)
	const many = 1000
	rounds := make(chan struct{}, 200) // flows that move bytes at one time; all are open
	var done sync.WaitGroup
	for i := range many {
		r, err := newRelayed(flows, ln)
		if err != nil {
			t.Fatal(err)
		}
		done.Go(func() {
			rounds <- struct{}{}
			defer func() { <-rounds }()
			defer r.client.Close()
			defer r.server.Close()
			size := 1 + i*97%(80<<10)
			if err := exchange(r.client, r.server, uint64(i)*10, size, 90<<10-size); err != nil {
				t.Errorf("flow %d: %v", i, err)
			}
			if err := <-r.ended; err != nil {
				t.Errorf("flow %d ended with %v", i, err)
			}
		})
	}
	done.Wait()
	if n := len(events.all()); n != many {
		t.Errorf("%d flows are recorded, want %d", n, many)
	}
	if n := flows.Len(); n != 0 {
		t.Errorf("%d flows are still registered", n)
	}
}

func TestRelayHalfClose(t *testing.T) {
	t.Run("a client that has sent all still gets the whole answer", func(t *testing.T) {
		flows, _ := newTestFlows(t)
		r := startRelayed(t, flows)
		if _, err := r.client.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		if err := r.client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r.server); err != nil || string(got) != "question" {
			t.Fatalf("the server read %q, %v", got, err)
		}
		for range 3 {
			if _, err := r.server.Write([]byte("answer ")); err != nil {
				t.Fatal(err)
			}
		}
		r.server.Close()
		if got, err := io.ReadAll(r.client); err != nil || string(got) != "answer answer answer " {
			t.Fatalf("the client read %q, %v", got, err)
		}
		if err := r.wait(t); err != nil {
			t.Error(err)
		}
	})
	t.Run("a server that has sent all still reads", func(t *testing.T) {
		flows, _ := newTestFlows(t)
		r := startRelayed(t, flows)
		if err := r.server.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r.client); err != nil || len(got) != 0 {
			t.Fatalf("the client read %q, %v", got, err)
		}
		if _, err := r.client.Write([]byte("late")); err != nil {
			t.Fatal(err)
		}
		r.client.Close()
		if got, err := io.ReadAll(r.server); err != nil || string(got) != "late" {
			t.Fatalf("the server read %q, %v", got, err)
		}
	})
}

func TestRelayPassesResetsOn(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, r *relayed)
		by      func(r *relayed) (resetter, other *net.TCPConn)
		want    error
	}{
		{"the client resets an idle flow", nil, clientResets, ErrClientReset},
		{"the server resets an idle flow", nil, serverResets, ErrUpstreamReset},
		{"the client resets after its half-close", func(t *testing.T, r *relayed) {
			r.client.CloseWrite()
			io.ReadAll(r.server)
		}, clientResets, ErrClientReset},
		{"the server resets after its half-close", func(t *testing.T, r *relayed) {
			r.server.CloseWrite()
			io.ReadAll(r.client)
		}, serverResets, ErrUpstreamReset},
		{"the server resets while the client's bytes have no room", func(t *testing.T, r *relayed) {
			fillUp(t, r.client)
		}, serverResets, ErrUpstreamReset},
		{"the client resets while its bytes have no room", func(t *testing.T, r *relayed) {
			fillUp(t, r.client)
		}, clientResets, ErrClientReset},
	} {
		t.Run(c.name, func(t *testing.T) {
			flows, events := newTestFlows(t)
			r := startRelayed(t, flows)
			if c.prepare != nil {
				c.prepare(t, r)
			}
			resetter, other := c.by(r)
			resetter.SetLinger(0)
			resetter.Close()
			if err := r.wait(t); !errors.Is(err, c.want) {
				t.Errorf("the relay ended with %v, want %v", err, c.want)
			}
			if err := finalError(other); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("the other side got %v, want a reset", err)
			}
			if got := events.all(); len(got) != 1 || got[0].Verdict != policy.Allow {
				t.Errorf("events %+v, want one, of an allowed flow", got)
			}
		})
	}
}

func clientResets(r *relayed) (*net.TCPConn, *net.TCPConn) { return r.client, r.server }
func serverResets(r *relayed) (*net.TCPConn, *net.TCPConn) { return r.server, r.client }

// fillUp writes until nothing more is taken.
func fillUp(t *testing.T, c *net.TCPConn) {
	t.Helper()
	chunk := make([]byte, 1<<20)
	for {
		c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Write(chunk); err != nil {
			c.SetWriteDeadline(time.Time{})
			return
		}
	}
}

// finalError reads to the end and says how it came: nil is an orderly close.
func finalError(c *net.TCPConn) error {
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := io.Copy(io.Discard, c)
	if err == nil {
		// An error that a write of ours has taken reads as an orderly end.
		return pendingError(c)
	}
	return err
}

func pendingError(c *net.TCPConn) (err error) {
	raw, e := c.SyscallConn()
	if e != nil {
		return e
	}
	e = raw.Control(func(fd uintptr) {
		info, e := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if e == nil && info.State == 7 { // TCP_CLOSE without a FIN of ours
			err = syscall.ECONNRESET
		}
	})
	return errors.Join(err, e)
}

func TestRelayDeliversWhatWasSentBeforeAReset(t *testing.T) {
	flows, _ := newTestFlows(t)
	r := startRelayed(t, flows)
	want := make([]byte, 10<<10)
	if _, err := r.server.Write(want); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r.client, got[:1]); err != nil {
		t.Fatal(err)
	}
	r.server.SetLinger(0)
	r.server.Close()
	r.wait(t)
	if _, err := io.ReadFull(r.client, got[1:]); err != nil {
		t.Errorf("what had arrived before the reset is gone: %v", err)
	}
}

func TestRelayOutOfBandDataStallsNothing(t *testing.T) {
	flows, _ := newTestFlows(t)
	r := startRelayed(t, flows)
	for i := range 60 {
		size := []int{1, 700, 40 << 10, 300 << 10}[i%4]
		if _, err := r.client.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		sendUrgent(t, r.client)
		r.server.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := io.ReadFull(r.server, make([]byte, size)); err != nil {
			t.Fatalf("round %d: %v after %d of %d bytes", i, err, n, size)
		}
	}
	r.client.CloseWrite()
	if rest, err := io.ReadAll(r.server); err != nil || len(rest) != 0 {
		t.Errorf("%d bytes more and %v, want an orderly end", len(rest), err)
	}
}

// sendUrgent sends one byte out of band.
func sendUrgent(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Send(int(fd), []byte{'!'}, unix.MSG_OOB)
		return !errors.Is(sent, syscall.EAGAIN)
	})
	if err := errors.Join(err, sent); err != nil {
		t.Fatal(err)
	}
}
