//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

// The origin reads a ClientHello, whose record header says how long it is, then
// a command of nine bytes: what to do and how much of it.
const (
	cmdSend = 'D' // send so many bytes
	cmdEcho = 'E' // echo what comes, byte by byte
	cmdAck  = 'C' // answer one byte
)

// runOrigin serves until ctx ends.
func runOrigin(ctx context.Context, addresses []string) error {
	var listeners []net.Listener
	for _, address := range addresses {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		listeners = append(listeners, ln)
	}
	var serving sync.WaitGroup
	var names error
	serving.Go(func() { names = serveNames(ctx, ":53") })
	for _, ln := range listeners {
		serving.Go(func() { acceptFrom(ln) })
	}
	<-ctx.Done()
	var err error
	for _, ln := range listeners {
		err = errors.Join(err, ln.Close())
	}
	serving.Wait()
	return errors.Join(err, names)
}

// acceptFrom serves each connection on a goroutine of its own, which ends with
// the process at the latest.
func acceptFrom(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "origin:", err)
			continue
		}
		go serveConn(conn)
	}
}

func serveConn(conn net.Conn) {
	defer conn.Close()
	head := make([]byte, 5)
	if _, err := io.ReadFull(conn, head); err != nil {
		return // a client that went away is nobody's error here
	}
	hello := make([]byte, int(binary.BigEndian.Uint16(head[3:]))+9)
	if _, err := io.ReadFull(conn, hello[:len(hello)-9]); err != nil {
		return
	}
	command := hello[len(hello)-9:]
	for {
		if _, err := io.ReadFull(conn, command); err != nil {
			return
		}
		if err := obey(conn, command[0], int(binary.BigEndian.Uint64(command[1:]))); err != nil {
			return
		}
	}
}

func obey(conn net.Conn, what byte, n int) error {
	switch what {
	case cmdSend:
		chunk := make([]byte, 256<<10)
		for n > 0 {
			sent, err := conn.Write(chunk[:min(n, len(chunk))])
			if err != nil {
				return err
			}
			n -= sent
		}
		return nil
	case cmdEcho:
		one := make([]byte, 1)
		for ; n > 0; n-- {
			if _, err := io.ReadFull(conn, one); err != nil {
				return err
			}
			if _, err := conn.Write(one); err != nil {
				return err
			}
		}
		return nil
	case cmdAck:
	default:
		return fmt.Errorf("origin: unknown command %q", what)
	}
	_, err := conn.Write([]byte{what})
	return err
}
