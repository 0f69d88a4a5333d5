package main

import (
	"context"
	endian "encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// packets sends denied UDP datagrams for a -time, -rate a second at most, in one of the
// ways, from as many threads as there are processors.
func packets(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("packets", flag.ContinueOnError)
	rate := flags.Int("rate", 50000, "so many a second")
	lasts := flags.Duration("time", 3*time.Second, "for so long")
	target := flags.String("target", "203.0.113.66", "to whom")
	way := flags.String("way", "sendto", "how")
	threads := flags.Int("threads", runtime.NumCPU(), "from so many threads")
	if err := flags.Parse(args); err != nil {
		return err
	}
	to, err := netip.ParseAddr(*target)
	if err != nil {
		return err
	}
	var sent, passed, used atomic.Int64
	var failed atomic.Pointer[error]
	var work sync.WaitGroup
	began := time.Now()
	for range *threads {
		s, err := ways[*way](to)
		if err != nil {
			return err
		}
		work.Go(func() {
			runtime.LockOSThread() // and never unlocked: what it used is this job's
			defer s.close()
			defer func() { used.Add(systemTime()) }()
			for time.Since(began) < *lasts && ctx.Err() == nil {
				// What cannot be sent that fast is not caught up with.
				for due := int64(time.Since(began).Seconds() * float64(*rate)); sent.Load() < due && time.Since(began) < *lasts; {
					given, accepted, err := s.send()
					sent.Add(int64(given))
					passed.Add(int64(accepted))
					if err != nil {
						failed.Store(&err)
						return
					}
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	work.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	say("sent %d accepted %d took %d used %d", sent.Load(), passed.Load(), time.Since(began).Milliseconds(), used.Load())
	return nil
}

// systemTime is what the kernel has used for this thread, in nanoseconds.
func systemTime() int64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		return 0
	}
	return usage.Stime.Nano()
}

// spread sends -n datagrams, for a -time at most, to as many pairs of address and port of a /24: each has a
// line in the kernel's connection table.
func spread(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("spread", flag.ContinueOnError)
	n := flags.Int("n", 1000, "so many")
	lasts := flags.Duration("time", time.Minute, "for so long at most")
	target := flags.String("target", "", "an address of the /24")
	if err := flags.Parse(args); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Addr: [4]byte(net.ParseIP(*target).To4())}
	sent, accepted, why := 0, 0, map[string]int{}
	for began := time.Now(); sent < *n && time.Since(began) < *lasts && ctx.Err() == nil; sent++ {
		i := sent
		to.Addr[3], to.Port = byte(1+i%250), 1024+i/250%60000
		if err := unix.Sendto(fd, []byte("line"), 0, to); err != nil {
			why[err.Error()]++
			continue
		}
		accepted++
	}
	for w, n := range why {
		say("failed %d %s", n, w)
	}
	say("sent %d accepted %d", sent, accepted)
	return nil
}

// synchronise sends -n SYNs from addresses that nobody has, so that no connection is
// ever complete. It takes CAP_NET_RAW.
func synchronise(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("syns", flag.ContinueOnError)
	n := flags.Int("n", 1000, "so many")
	target := flags.String("target", "", "address")
	port := flags.Int("port", 443, "port")
	if err := flags.Parse(args); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		say("sent 0: %v", err)
		return nil
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Addr: [4]byte(net.ParseIP(*target).To4())}
	sent, why := 0, map[string]int{}
	for i := 0; i < *n && ctx.Err() == nil; i++ {
		packet := syn([4]byte{192, 0, 2, byte(200 + i%50)}, to.Addr, uint16(1024+i/50%60000), uint16(*port))
		if err := unix.Sendto(fd, packet, 0, to); err != nil {
			why[err.Error()]++
			continue
		}
		sent++
	}
	for w, n := range why {
		say("failed %d %s", n, w)
	}
	half, err := halfOpenHere()
	if err != nil {
		return err
	}
	say("sent %d refused %d half %d", sent, *n-sent, half)
	return nil
}

// halfOpen begins -n connections whose answers it does not hear: each socket drops
// what has not come from next door (RFC 5082; nobody sends with so high a TTL), so that
// the listener waits for the third segment. That takes no capability. It says how many
// it began, and how many the namespace's table of sockets then shows as half-open.
func halfOpen(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("halfopen", flag.ContinueOnError)
	n := flags.Int("n", 1000, "so many")
	target := flags.String("target", "", "address")
	port := flags.Int("port", 443, "port")
	if err := flags.Parse(args); err != nil {
		return err
	}
	to, err := netip.ParseAddr(*target)
	if err != nil {
		return err
	}
	began, why := 0, map[string]int{}
	for range *n {
		fd, at, err := streamTo(to)
		if err == nil && to.Is6() {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, 255)
		} else if err == nil {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MINTTL, 255)
		}
		if err == nil {
			if err = unix.Connect(fd, at(*port)); errors.Is(err, unix.EINPROGRESS) {
				began++
				continue // the descriptor is held until the process ends
			}
		}
		why[fmt.Sprint(err)]++
	}
	for w, n := range why {
		say("failed %d %s", n, w)
	}
	half, err := halfOpenHere()
	if err != nil {
		return err
	}
	say("began %d half %d", began, half)
	<-ctx.Done()
	return nil
}

func streamTo(to netip.Addr) (fd int, at func(port int) unix.Sockaddr, err error) {
	if to.Is6() {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		return fd, func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Port: port, Addr: to.As16()} }, err
	}
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	return fd, func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Port: port, Addr: to.As4()} }, err
}

// halfOpenHere counts sockets in state SYN_RECV.
func halfOpenHere() (n int, err error) {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "03" {
				n++
			}
		}
	}
	return n, nil
}

// syn is an IPv4 packet with a TCP SYN (RFC 791 section 3.1, RFC 9293 section 3.1).
func syn(from, to [4]byte, fromPort, toPort uint16) []byte {
	const ip, tcp = 20, 20
	b := make([]byte, ip+tcp)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_TCP
	endian.BigEndian.PutUint16(b[2:], ip+tcp)
	copy(b[12:], from[:])
	copy(b[16:], to[:])
	t := b[ip:]
	endian.BigEndian.PutUint16(t, fromPort)
	endian.BigEndian.PutUint16(t[2:], toPort)
	endian.BigEndian.PutUint32(t[4:], uint32(fromPort)<<16)
	t[12], t[13] = tcp/4<<4, 0x02 // SYN
	endian.BigEndian.PutUint16(t[14:], 65535)
	sum := uint32(unix.IPPROTO_TCP + tcp)
	for i := 12; i < len(b); i += 2 { // both addresses and the segment
		sum += uint32(endian.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	endian.BigEndian.PutUint16(t[16:], ^uint16(sum))
	return b
}

// giveUp connects -n times, and resets each connection at once, without a byte.
func giveUp(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("giveup", flag.ContinueOnError)
	n := flags.Int("n", 1000, "so many")
	target := flags.String("target", "", "host:port")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var ok atomic.Int64
	var work sync.WaitGroup
	tokens := make(chan struct{}, 32)
	for range *n {
		tokens <- struct{}{}
		work.Go(func() {
			defer func() { <-tokens }()
			c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", *target)
			if err != nil {
				return
			}
			ok.Add(1)
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		})
	}
	work.Wait()
	say("opened %d", ok.Load())
	return nil
}
