//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// client makes an ordinary client; at, where not empty, is dialled whatever the
// URL's host resolves to.
func client(at string) (*http.Client, error) {
	pool, err := roots()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if at != "" {
				address = at
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	return &http.Client{Transport: transport}, nil
}

// get prints the protocol, the status and the body of each URL, all by one client.
func get(args []string) error {
	flags := flag.NewFlagSet("get", flag.ExitOnError)
	at := flags.String("at", "", "dial this address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	c, err := client(*at)
	if err != nil {
		return err
	}
	var faults error
	for _, target := range flags.Args() {
		if err := fetch(c, target); err != nil {
			faults = err
			fmt.Printf("%s: %s\n", target, word(err))
		}
	}
	return faults
}

func fetch(c *http.Client, target string) error {
	response, err := c.Get(target)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return err
	}
	fmt.Printf("%s %d %s", response.Proto, response.StatusCode, body)
	return nil
}

// repeat gets URL N times, each over a connection of its own, ten at once, and
// prints how many answered.
func repeat(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	c, err := client("")
	if err != nil {
		return err
	}
	c.Transport.(*http.Transport).DisableKeepAlives = true
	var mu sync.Mutex
	results := map[string]int{}
	jobs := make(chan struct{})
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			for range jobs {
				outcome := one(c, args[1])
				mu.Lock()
				results[outcome]++
				mu.Unlock()
			}
		})
	}
	for range n {
		jobs <- struct{}{}
	}
	close(jobs)
	group.Wait()
	fmt.Println(results)
	return nil
}

func one(c *http.Client, target string) string {
	response, err := c.Get(target)
	if err != nil {
		return word(err)
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return word(err)
	}
	return strconv.Itoa(response.StatusCode)
}

// hold transfers from each URL at once, N times each, over HTTP/1.1 connections of
// their own. It prints "live" when bytes of every one have come; at the end of
// all, how each URL's transfers ended: "cut" or the checksum of what came.
func hold(args []string) error {
	flags := flag.NewFlagSet("hold", flag.ExitOnError)
	up := flags.Bool("up", false, "upload without end, too, in every second transfer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	n, err := strconv.Atoi(flags.Arg(0))
	if err != nil {
		return err
	}
	c, err := client("")
	if err != nil {
		return err
	}
	transport := c.Transport.(*http.Transport)
	transport.DisableKeepAlives, transport.ForceAttemptHTTP2 = true, false
	var mu sync.Mutex
	results := map[string]map[string]int{}
	var live, group sync.WaitGroup
	for _, target := range flags.Args()[1:] {
		results[target] = map[string]int{}
		for i := range n {
			live.Add(1)
			started := sync.OnceFunc(live.Done)
			group.Go(func() {
				defer started()
				var outcome string
				if *up && i%2 == 1 {
					outcome = upload(c, target, started)
				} else {
					outcome = download(c, target, started)
				}
				mu.Lock()
				results[target][outcome]++
				mu.Unlock()
			})
		}
	}
	live.Wait()
	fmt.Println("live")
	group.Wait()
	for target, outcomes := range results {
		for outcome, count := range outcomes {
			fmt.Printf("%s %d× %s\n", target, count, outcome)
		}
	}
	return nil
}

func download(c *http.Client, target string, started func()) string {
	response, err := c.Get(target)
	if err != nil {
		return "failed: " + word(err)
	}
	defer response.Body.Close()
	sum := sha256.New()
	if _, err := io.CopyN(sum, response.Body, 1); err != nil {
		return "empty: " + word(err)
	}
	started()
	if _, err := io.Copy(sum, response.Body); err != nil {
		return "cut"
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// upload sends without end to the path /upload of the target's host.
func upload(c *http.Client, target string, started func()) string {
	base, _, _ := strings.Cut(target, "/endless")
	request, err := http.NewRequest(http.MethodPost, base+"/upload", &endless{after: 8, started: started})
	if err != nil {
		return err.Error()
	}
	response, err := c.Do(request)
	if err != nil {
		return "cut"
	}
	defer response.Body.Close()
	return response.Status
}

// endless is a body that calls started after so many reads, 10 ms apart.
type endless struct {
	after   int
	started func()
}

func (e *endless) Read(p []byte) (int, error) {
	if e.after--; e.after == 0 {
		e.started()
	}
	time.Sleep(10 * time.Millisecond)
	return len(p), nil
}

// drip prints each line of a body with the time since the one before.
func drip(args []string) error {
	c, err := client("")
	if err != nil {
		return err
	}
	response, err := c.Get(args[0])
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	last := time.Now()
	for lines.Scan() {
		if lines.Text() == "" {
			continue
		}
		fmt.Printf("%d %s\n", time.Since(last).Milliseconds(), lines.Text())
		last = time.Now()
	}
	return lines.Err()
}

// webSocket talks over a WebSocket for a while: text, a large message, and a
// pause.
func webSocket(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := client("")
	if err != nil {
		return err
	}
	c.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	conn, response, err := websocket.Dial(ctx, args[0], &websocket.DialOptions{HTTPClient: c})
	if err != nil {
		if response != nil {
			fmt.Println("status", response.StatusCode)
		}
		return err
	}
	conn.SetReadLimit(2 << 20)
	for i, message := range []string{"hello", strings.Repeat("x", 1<<20), "again"} {
		if i == 2 {
			time.Sleep(200 * time.Millisecond)
		}
		if err := conn.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
			return err
		}
		_, echo, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		if string(echo) != message {
			return fmt.Errorf("echo %d differs", i)
		}
	}
	fmt.Println("echoed")
	return conn.Close(websocket.StatusNormalClosure, "")
}

// hang prints "ready" and waits for the end of its input.
func hang([]string) error {
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
