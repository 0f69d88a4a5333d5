//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"
)

// recoveryLimit is in ms: issue 5 wants a killed worker's successor to serve within it.
const recoveryLimit = 100

// recoveries is how often a worker is killed: as often as the keeper starts another at once.
const recoveries = 8

// recovery kills exeatd's worker (SIGKILL) and times until the first connection through
// the next one has its answer. Meanwhile the keeper holds the listeners: no connection is refused.
func recovery(l *lab) (s section, err error) {
	s.columns = []string{"after SIGKILL", "ms", "ms at most"}
	program, err := l.build("exeatd")
	if err != nil {
		s.notes = append(s.notes, "not measured: "+err.Error())
		return s, nil
	}
	d, err := l.startDaemon(program, 0)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	origin, err := l.start(d.far, 0, l.program, "origin", fmt.Sprintf(":%d", originPort))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, origin.stop()) }()
	client := load{target: fmt.Sprintf("%s:%d", stays, originPort)}
	if client.hello, err = clientHello(originName); err != nil {
		return s, err
	}
	var times []float64
	connects, refused := 0, 0
	for range recoveries {
		if _, _, err := awaitDaemon(d.client, time.Now()); err != nil {
			return s, err
		}
		if err := d.serve(l.ctx, &client); err != nil { // all is well before
			return s, err
		}
		k, err := d.killWorker(l.ctx, &client)
		if err != nil {
			return s, err
		}
		times = append(times, float64(k.took.Nanoseconds())/1e6)
		connects, refused = connects+k.connects, refused+k.refused
	}
	f := figureOfValues(times)
	s.rows = append(s.rows, []string{"a new connection is served", f.format("%.0f"), fmt.Sprintf("%.0f", times[len(times)-1])})
	s.verdicts = append(s.verdicts,
		atMost("ms from the worker's death until a new connection is served", f.median, recoveryLimit),
		atMost(fmt.Sprintf("connections refused meanwhile, of %d", connects), float64(refused), 0))
	return s, nil
}

// killed is what befell connections when a worker was killed.
type killed struct {
	took              time.Duration // until one was served
	connects, refused int
}

// killWorker kills the worker, and connects over and over until a connection is served.
func (d *daemon) killWorker(ctx context.Context, client *load) (k killed, err error) {
	tree, err := treeOf(d.cmd.Process.Pid)
	if err != nil || len(tree) != 2 {
		return k, errors.Join(err, fmt.Errorf("processes %v, want the keeper and its worker", tree))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		k.connects, k.refused = d.knock(ctx, client, stop)
	}()
	began := time.Now()
	err = syscall.Kill(tree[1], syscall.SIGKILL)
	if err == nil {
		err = d.serve(ctx, client)
	}
	k.took = time.Since(began)
	close(stop)
	<-stopped
	return k, err
}

// serve connects until a connection is answered. One that the worker had accepted when it
// died is lost.
func (d *daemon) serve(ctx context.Context, client *load) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		err = within(d.near, func() error {
			conn, err := client.open(cmdAck, 0)
			if err != nil {
				return err
			}
			err = conn.SetDeadline(time.Now().Add(10 * time.Second))
			if err == nil {
				_, err = io.ReadFull(conn, make([]byte, 1))
			}
			return errors.Join(err, conn.Close())
		})
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("no connection is served: %w", err)
}

// knock opens connections, one every few ms, and says how many there were and how many
// were refused.
func (d *daemon) knock(ctx context.Context, client *load, stop <-chan struct{}) (connects, refused int) {
	for {
		select {
		case <-stop:
			return connects, refused
		default:
		}
		connects++
		err := within(d.near, func() error {
			conn, err := client.open(cmdAck, 0)
			if err != nil {
				return err
			}
			return conn.Close()
		})
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused++
		}
		if pause(ctx, 5*time.Millisecond) != nil {
			return connects, refused
		}
	}
}
