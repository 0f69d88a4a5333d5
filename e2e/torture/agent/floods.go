package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// idle opens -n flows to a target, and holds them. It says "open N" and, once it is
// stopped, over how many of them bytes still go there and back, "alive N".
func idle(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("idle", flag.ContinueOnError)
	n := flags.Int("n", 1000, "so many flows")
	target := flags.String("target", "", "to whom")
	port := flags.String("port", "7", "at which port")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var open atomic.Int64
	var mu sync.Mutex
	var held []net.Conn
	failures := map[string]int{}
	var work sync.WaitGroup
	tokens := make(chan struct{}, 64)
	for range *n {
		tokens <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			defer func() { <-tokens }()
			c, err := dial(ctx, "tcp", *target, *port)
			if err == nil {
				err = echo{c}.exchange()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures[oneLine(lastError(err))]++
				if c != nil {
					c.Close()
				}
				return
			}
			open.Add(1)
			held = append(held, c)
		})
	}
	work.Wait()
	for why, n := range failures {
		say("failed %d %s", n, why)
	}
	say("open %d", open.Load())
	<-ctx.Done()
	alive := 0
	for _, c := range held {
		if (echo{c}).exchange() == nil {
			alive++
		}
		c.Close()
	}
	say("alive %d", alive)
	return nil
}

// lastError leaves addresses and ports out, by which errors differ.
func lastError(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// beginnings are what a slow client never gets to the end of, byte by byte.
var beginnings = map[string]struct {
	port string
	text string
}{
	"tls":     {"443", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("r", 400)},
	"http":    {"80", "GET / HTTP/1.1\r\nHost: t0.torture.test\r\nX-Slow: " + strings.Repeat("s", 400)},
	"dns":     {"53", "\x02\x00" + strings.Repeat("d", 400)},
	"connect": {"", "CONNECT t0.torture.test:443 HTTP/1.1\r\nX-Slow: " + strings.Repeat("s", 400)},
	"silent":  {"443", ""},
}

// echoes is a far side, for as many flows as one process has descriptors for.
func echoes(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("echoes", flag.ContinueOnError)
	port := flags.String("port", "", "where")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", ":"+*port)
	if err != nil {
		return err
	}
	defer ln.Close()
	unhook := context.AfterFunc(ctx, func() { ln.Close() })
	defer unhook()
	say("listens")
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() { // until the process ends
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// slow opens -n connections of a kind and sends a byte a -every on each. It says
// "open N" and, once they have all been ended by the other side, "done".
func slow(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("slow", flag.ContinueOnError)
	n := flags.Int("n", 100, "so many connections")
	kind := flags.String("kind", "", "tls, http, dns, connect or silent")
	target := flags.String("target", "", "whose address to dial")
	explicit := flags.String("explicit", "", "the explicit proxy")
	every := flags.Duration("every", 200*time.Millisecond, "a byte so often")
	if err := flags.Parse(args); err != nil {
		return err
	}
	what, ok := beginnings[*kind]
	if !ok {
		return fmt.Errorf("no kind %q", *kind)
	}
	at := net.JoinHostPort(*target, what.port)
	if what.port == "" {
		at = *explicit
	}
	began := time.Now()
	var open, refused atomic.Int64
	var longest atomic.Int64
	var work, opening sync.WaitGroup
	for range *n {
		opening.Add(1)
		work.Go(func() {
			c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", at)
			if err != nil {
				refused.Add(1)
				opening.Done()
				return
			}
			open.Add(1)
			opening.Done()
			defer c.Close()
			unhook := context.AfterFunc(ctx, func() { c.Close() })
			defer unhook()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				// Whatever it says first, it has decided.
				c.Read(make([]byte, 1))
			}()
			for i := 0; ; i++ {
				select {
				case <-ended:
					longest.Store(max(longest.Load(), int64(time.Since(began))))
					return
				case <-time.After(*every):
				}
				if i < len(what.text) {
					if _, err := io.WriteString(c, what.text[i:i+1]); err != nil {
						<-ended
						return
					}
				}
			}
		})
	}
	opening.Wait()
	say("open %d refused %d", open.Load(), refused.Load())
	work.Wait()
	say("longest %d", time.Duration(longest.Load()).Milliseconds())
	return nil
}

// askNames asks for -n distinct names that nobody allowed, over -conns sockets.
func askNames(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("names", flag.ContinueOnError)
	n := flags.Int("n", 1000, "so many names")
	conns := flags.Int("conns", 8, "so many sockets")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var next, denied, answered, lost atomic.Int64
	var work sync.WaitGroup
	for range *conns {
		work.Go(func() {
			c, err := net.Dial("udp", "198.51.100.1:53")
			if err != nil {
				return
			}
			defer c.Close()
			conn := &dns.Conn{Conn: c}
			for ctx.Err() == nil {
				i := next.Add(1)
				if i > int64(*n) {
					return
				}
				question := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.flood.test.", i), dns.TypeA)
				answer, _, err := (&dns.Client{Timeout: patience}).ExchangeWithConn(question, conn)
				switch {
				case err != nil:
					lost.Add(1)
				case answer.Rcode == dns.RcodeNameError:
					denied.Add(1)
				default:
					answered.Add(1)
				}
			}
		})
	}
	work.Wait()
	say("denied %d answered %d lost %d", denied.Load(), answered.Load(), lost.Load())
	return nil
}

// exhaust opens connections to a target until no descriptor or port is left, and
// holds them until it is stopped.
func exhaust(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("exhaust", flag.ContinueOnError)
	target := flags.String("target", "", "host:port")
	most := flags.Int("n", 30000, "at most so many")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var held []net.Conn
	why := map[string]int{}
	inARow := 0
	for len(held) < *most && inARow < 50 && ctx.Err() == nil {
		c, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", *target)
		if err != nil {
			why[oneLine(lastError(err))]++
			inARow++
			continue
		}
		inARow = 0
		held = append(held, c)
	}
	for w, n := range why {
		say("failed %d %s", n, w)
	}
	say("open %d", len(held))
	<-ctx.Done()
	for _, c := range held {
		c.Close()
	}
	return nil
}

// connects dials a target again and again, and says how often that failed, and
// the longest time between two that bytes came back over.
func connects(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("connects", flag.ContinueOnError)
	target := flags.String("target", "", "host")
	if err := flags.Parse(args); err != nil {
		return err
	}
	tried, refused, cut := 0, map[string]int{}, 0
	var longest time.Duration
	last := time.Now()
	for ctx.Err() == nil {
		tried++
		began := time.Now()
		c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", *target)
		if err != nil {
			if ctx.Err() == nil {
				refused[oneLine(lastError(err))]++
			}
			continue
		}
		dialled := time.Since(began)
		err = echo{c}.exchange()
		if took := time.Since(began); took > time.Second {
			say("slow from %s: dialled after %s, ended after %s: %v", began.Format(time.StampMilli), dialled, took, err)
		}
		if err == nil {
			longest = max(longest, time.Since(last))
			last = time.Now()
		} else {
			cut++
		}
		c.Close()
	}
	for w, n := range refused {
		say("refused %d %s", n, w)
	}
	say("tried %d cut %d longest %d", tried, cut, longest.Milliseconds())
	return nil
}

// fetches makes requests over HTTPS as fast as they are answered, over -n connections
// that stay open, and says four times a second how many that would be in a second.
func fetches(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("fetches", flag.ContinueOnError)
	n := flags.Int("n", 4, "so many connections")
	target := flags.String("target", "", "name")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var done, failed atomic.Int64
	var work sync.WaitGroup
	for range *n {
		work.Go(func() {
			for ctx.Err() == nil {
				f, err := openers["tls"](ctx, *target, "")
				if err != nil {
					failed.Add(1)
					pause(ctx, 10*time.Millisecond)
					continue
				}
				for ctx.Err() == nil {
					if f.exchange() != nil {
						failed.Add(1)
						break
					}
					done.Add(1)
				}
				f.Close()
			}
		})
	}
	for tick := time.NewTicker(250 * time.Millisecond); ; {
		select {
		case <-tick.C:
			say("rate %d failed %d", done.Swap(0)*4, failed.Swap(0))
			continue
		case <-ctx.Done():
			tick.Stop()
		}
		break
	}
	work.Wait()
	return nil
}
