//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// originName is the server name that every client shows.
const originName = "origin.bench.test"

// loadResult is what the load generator prints, as one line of JSON.
type loadResult struct {
	Seconds float64 `json:"seconds"`
	Units   float64 `json:"units"` // bytes, connections or round trips
	Failed  int     `json:"failed"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
}

// load is one client.
type load struct {
	target, connect string
	hello           []byte
}

// runLoad measures from the client's side.
func runLoad(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("bench load", flag.ContinueOnError)
	mode := flags.String("mode", "", "bulk, setup, trips, idle, hit, miss or denied")
	n := flags.Int("n", 1, "bytes in all, connections, round trips or tunnels")
	streams := flags.Int("streams", 1, "connections at a time")
	l := load{}
	flags.StringVar(&l.target, "target", "", "address of the origin")
	flags.StringVar(&l.connect, "connect", "", "address of an HTTP proxy; empty goes straight to the origin")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if l.hello, err = clientHello(originName); err != nil {
		return err
	}
	var r loadResult
	start := time.Now()
	switch *mode {
	case "bulk":
		r, err = l.bulk(*n, *streams)
	case "setup":
		r, err = l.setup(*n, *streams)
	case "trips":
		r, err = l.trips(*n)
	case askHit, askMiss, askDenied:
		r, err = l.ask(*mode, *n, *streams)
	case "idle":
		return l.idle(*n, stdin, stdout)
	default:
		return fmt.Errorf("unknown mode %q", *mode)
	}
	if err != nil {
		return err
	}
	if r.Seconds == 0 {
		r.Seconds = time.Since(start).Seconds()
	}
	return json.NewEncoder(stdout).Encode(r)
}

// clientHello is what a Go client of today sends first.
func clientHello(name string) ([]byte, error) {
	near, far := net.Pipe()
	defer far.Close()
	failed := make(chan error, 1)
	go func() {
		failed <- tls.Client(near, &tls.Config{ServerName: name}).Handshake()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(far, head); err != nil {
		return nil, fmt.Errorf("make a ClientHello: %w", err)
	}
	hello := append(head, make([]byte, binary.BigEndian.Uint16(head[3:]))...)
	if _, err := io.ReadFull(far, hello[5:]); err != nil {
		return nil, fmt.Errorf("make a ClientHello: %w", err)
	}
	if err := errors.Join(near.Close(), far.Close()); err != nil {
		return nil, err
	}
	<-failed // it fails, since nobody answers
	return hello, nil
}

// open connects and sends the hello and a command at once.
func (l *load) open(what byte, n int) (net.Conn, error) {
	address := l.target
	if l.connect != "" {
		address = l.connect
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	if l.connect != "" {
		if err := l.tunnel(conn); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	first := append(slices.Clone(l.hello), what)
	first = binary.BigEndian.AppendUint64(first, uint64(n))
	if _, err := conn.Write(first); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// tunnel asks an HTTP proxy for the target.
func (l *load) tunnel(conn net.Conn) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", l.target, l.target); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(conn, 4096), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fmt.Errorf("CONNECT: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("CONNECT: %s", answer.Status)
	}
	return nil
}

// bulk downloads n bytes over so many streams.
func (l *load) bulk(n, streams int) (loadResult, error) {
	errs := make(chan error, streams)
	start := time.Now()
	for range streams {
		go func() { errs <- l.download(n / streams) }()
	}
	var err error
	for range streams {
		err = errors.Join(err, <-errs)
	}
	return loadResult{Units: float64(n), Seconds: time.Since(start).Seconds()}, err
}

func (l *load) download(n int) error {
	conn, err := l.open(cmdSend, n)
	if err != nil {
		return err
	}
	chunk := make([]byte, 256<<10)
	for n > 0 {
		got, err := conn.Read(chunk)
		if err != nil {
			return errors.Join(fmt.Errorf("%d bytes short: %w", n, err), conn.Close())
		}
		n -= got
	}
	return conn.Close()
}

// setup opens n connections, so many at a time, and times each to its first byte.
func (l *load) setup(n, streams int) (loadResult, error) {
	var mu sync.Mutex
	var times []time.Duration
	var failed error
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			for range n / streams {
				took, err := l.one()
				mu.Lock()
				times = append(times, took)
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return timed(times), failed
}

func (l *load) one() (time.Duration, error) {
	start := time.Now()
	conn, err := l.open(cmdAck, 0)
	if err != nil {
		return 0, err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	took := time.Since(start)
	return took, errors.Join(err, conn.Close())
}

// trips sends a byte there and back n times on one connection.
func (l *load) trips(n int) (loadResult, error) {
	conn, err := l.open(cmdEcho, n)
	if err != nil {
		return loadResult{}, err
	}
	one := make([]byte, 1)
	times := make([]time.Duration, 0, n)
	for range n {
		start := time.Now()
		if _, err := conn.Write(one); err != nil {
			return loadResult{}, errors.Join(err, conn.Close())
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return loadResult{}, errors.Join(err, conn.Close())
		}
		times = append(times, time.Since(start))
	}
	return timed(times), conn.Close()
}

func timed(times []time.Duration) loadResult {
	slices.Sort(times)
	at := func(q float64) float64 { return float64(times[int(q*float64(len(times)-1))].Nanoseconds()) / 1e3 }
	return loadResult{Units: float64(len(times)), P50: at(.5), P99: at(.99)}
}

// idle opens n tunnels that have each answered once, says so, and holds them
// until its input ends.
func (l *load) idle(n int, stdin io.Reader, stdout io.Writer) error {
	start := time.Now()
	r := loadResult{}
	held := make([]net.Conn, 0, n)
	for range n {
		conn, err := l.open(cmdAck, 0)
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		if err != nil {
			r.Failed++
			continue
		}
		held = append(held, conn)
	}
	r.Units, r.Seconds = float64(len(held)), time.Since(start).Seconds()
	if err := json.NewEncoder(stdout).Encode(r); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, stdin); err != nil {
		return err
	}
	var err error
	for _, conn := range held {
		err = errors.Join(err, conn.Close())
	}
	return err
}
