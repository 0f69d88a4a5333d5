//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"

	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// The ends of direct flows: those to stays survive every swap of this bench.
const (
	agentAddr = "203.0.113.1"
	stays     = "203.0.113.10"
	goes      = "203.0.113.11"
)

// silentFlows of so many are revoked in P8.
const silentFlows = 100

// directRevocation is P8's direct half: of an active flow nothing passes 1 ms after
// the commit; 100 silent flows among 5,000 are reset within 20 ms of it.
func directRevocation(l *lab) (section, error) {
	s := section{columns: []string{"flows", "ms from the commit until nothing passes, or the last reset", "ms to commit", "ms until the swap has returned"}}
	d, err := newDirectLab()
	if err != nil {
		return s, err
	}
	active, err := measureSwaps(l, d.cutActive)
	if err != nil {
		return s, errors.Join(err, d.close())
	}
	if err := d.fill(l.size.idle - silentFlows); err != nil {
		return s, errors.Join(err, d.close())
	}
	silent, err := measureSwaps(l, d.cutSilent)
	if err != nil {
		return s, errors.Join(err, d.close())
	}
	s.rows = append(s.rows, active.row("one that sends all the time"), silent.row(fmt.Sprintf("%d silent of %d", silentFlows, l.size.idle)))
	s.verdicts = append(s.verdicts,
		atMost("ms after the commit that an active direct flow passes", active.late.median, 1),
		atMost(fmt.Sprintf("ms from the commit until %d silent flows of %d are reset", silentFlows, l.size.idle), silent.late.median, 20))
	return s, d.close()
}

// cut is one swap that ended flows, in ms.
type cut struct{ late, commit, returned float64 }

// cuts are the figures of several.
type cuts struct{ late, commit, returned figure }

func (c cuts) row(what string) []string {
	return []string{what, c.late.format("%.2f"), c.commit.format("%.1f"), c.returned.format("%.1f")}
}

func measureSwaps(l *lab, measure func() (cut, error)) (cuts, error) {
	var late, commit, returned []float64
	for range l.size.rounds {
		c, err := measure()
		if err != nil {
			return cuts{}, err
		}
		late, commit, returned = append(late, c.late), append(commit, c.commit), append(returned, c.returned)
	}
	return cuts{figureOfValues(late), figureOfValues(commit), figureOfValues(returned)}, nil
}

// directLab is an agent's namespace under the joined ruleset and one beyond it,
// whose sockets are all this process's.
type directLab struct {
	agent, beyond netns.NsHandle
	fw            *firewall.Firewall
	kernel        *firewall.Kernel
	tcp           net.Listener
	udp           net.PacketConn
	held          []net.Conn
	// lastSent is when the last datagram that arrived was sent.
	lastSent   atomic.Int64
	epoch      time.Time
	generation uint64
	everything *policy.Compiled
}

func newDirectLab() (*directLab, error) {
	d := &directLab{epoch: time.Now(), everything: policy.Compile(policy.Document{Mode: policy.ModePublic}, policy.Options{})}
	var err error
	if d.agent, d.beyond, err = newPair([]string{agentAddr}, []string{stays, goes}); err != nil {
		return nil, err
	}
	if d.fw, d.kernel, err = enforce(d.agent, d.everything); err != nil {
		return nil, errors.Join(err, d.agent.Close(), d.beyond.Close())
	}
	err = within(d.beyond, func() (err error) {
		if d.tcp, err = net.Listen("tcp4", ":22"); err == nil {
			d.udp, err = net.ListenPacket("udp4", ":22")
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	go d.echo()
	go d.receive()
	return d, nil
}

// echo answers each connection's bytes until the lab closes.
func (d *directLab) echo() {
	for {
		conn, err := d.tcp.Accept()
		if err != nil {
			return // the lab closes
		}
		go func() {
			defer conn.Close()
			one := make([]byte, 1) // io.Copy would take a pipe a connection
			for {
				if _, err := io.ReadFull(conn, one); err != nil {
					return // closed, or cut, which is what it is for
				}
				if _, err := conn.Write(one); err != nil {
					return
				}
			}
		}()
	}
}

// receive notes when each datagram that arrives was sent.
func (d *directLab) receive() {
	b := make([]byte, 8)
	for {
		n, _, err := d.udp.ReadFrom(b)
		if err != nil {
			return // the lab closes
		}
		if n == len(b) {
			d.lastSent.Store(int64(binary.BigEndian.Uint64(b)))
		}
	}
}

func (d *directLab) now() int64 { return int64(time.Since(d.epoch)) }

// dial opens a flow of the agent.
func (d *directLab) dial(network, address string) (conn net.Conn, err error) {
	err = within(d.agent, func() (err error) {
		conn, err = net.Dial(network, net.JoinHostPort(address, "22"))
		return err
	})
	return conn, err
}

// fill opens silent flows that every policy allows.
func (d *directLab) fill(n int) error {
	for range n {
		conn, err := d.dial("tcp4", stays)
		if err != nil {
			return err
		}
		d.held = append(d.held, conn)
	}
	return nil
}

// swap changes to the policy and says when that was committed.
func (d *directLab) swap(c *policy.Compiled) (commit int64, took firewall.Swap, err error) {
	start := d.now()
	took, err = d.fw.SwapPolicy(c, nil)
	return start + int64(took.Took), took, err
}

// narrow allows the address that stays and nothing else.
func (d *directLab) narrow() *policy.Compiled {
	d.generation++
	return policy.Compile(policy.Document{
		Mode:    policy.ModeAllowlist,
		Allowed: []policy.Target{{Prefix: netip.PrefixFrom(netip.MustParseAddr(stays), 32)}},
	}, policy.Options{Generation: d.generation})
}

func (c *cut) set(late int64, took firewall.Swap) {
	c.late = float64(late) / 1e6
	c.commit, c.returned = float64(took.Took.Nanoseconds())/1e6, float64((took.Took+took.Cut).Nanoseconds())/1e6
}

// cutActive swaps while a flow sends without pause.
func (d *directLab) cutActive() (c cut, err error) {
	conn, err := d.dial("udp4", goes)
	if err != nil {
		return c, err
	}
	d.lastSent.Store(0)
	stop, sent := make(chan struct{}), make(chan error, 1)
	go func() { sent <- d.send(conn, stop) }()
	for began := time.Now(); d.lastSent.Load() == 0; {
		err := pause(context.Background(), time.Millisecond)
		if time.Since(began) > 5*time.Second {
			err = errors.Join(err, errors.New("no datagram arrives"))
		}
		if err != nil {
			close(stop)
			return c, errors.Join(err, <-sent, conn.Close())
		}
	}
	commit, took, err := d.swap(d.narrow())
	// What would still pass has time to.
	err = errors.Join(err, pause(context.Background(), 50*time.Millisecond))
	close(stop)
	err = errors.Join(err, <-sent, conn.Close())
	if err == nil && len(took.Revoked) != 1 {
		err = fmt.Errorf("revoked %v, want the one flow", took.Revoked)
	}
	c.set(max(0, d.lastSent.Load()-commit), took)
	_, _, back := d.swap(d.everything)
	return c, errors.Join(err, back)
}

// send writes the time to a flow, over and over; that it is refused is no error.
func (d *directLab) send(conn net.Conn, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(d.now()))); err != nil {
			<-stop
			return nil
		}
		if err := pause(context.Background(), 10*time.Microsecond); err != nil {
			return err
		}
	}
}

// cutSilent swaps while many flows stand and none says a thing, and waits until
// each that is forbidden has been told.
func (d *directLab) cutSilent() (c cut, err error) {
	ended := make(chan int64, silentFlows)
	for range silentFlows {
		conn, err := d.dial("tcp4", goes)
		if err != nil {
			return c, err
		}
		go func() {
			defer conn.Close()
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				ended <- d.now()
			}
		}()
	}
	commit, took, err := d.swap(d.narrow())
	if err != nil {
		return c, err
	}
	if len(took.Revoked) != silentFlows {
		return c, fmt.Errorf("%d flows revoked of %d", len(took.Revoked), silentFlows)
	}
	var last int64
	for range silentFlows {
		select {
		case at := <-ended:
			last = max(last, at)
		case <-time.After(5 * time.Second):
			return c, errors.New("a forbidden flow was not reset in 5 s")
		}
	}
	c.set(max(0, last-commit), took)
	if len(d.held) > 0 {
		if err := echoOnce(d.held[0]); err != nil {
			return c, fmt.Errorf("a flow that is allowed: %w", err)
		}
	}
	_, _, err = d.swap(d.everything)
	return c, err
}

func echoOnce(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{'x'}); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

func (d *directLab) close() error {
	var errs []error
	for _, conn := range d.held {
		errs = append(errs, conn.Close())
	}
	if d.tcp != nil {
		errs = append(errs, d.tcp.Close())
	}
	if d.udp != nil {
		errs = append(errs, d.udp.Close())
	}
	return errors.Join(append(errs, d.kernel.Close(), d.agent.Close(), d.beyond.Close())...)
}
