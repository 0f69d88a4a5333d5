//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// datagram sends to ADDR twice: what the first met is told on the second.
func datagram(args []string) error {
	conn, err := net.Dial("udp", args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	for range 2 {
		if _, err := conn.Write([]byte("beacon")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		if _, err := conn.Read(make([]byte, 64)); err != nil {
			return err
		}
	}
	fmt.Println("answered")
	return nil
}

// knock connects to ADDR and prints the first line that the server says.
func knock(args []string) error {
	conn, err := dial(args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(15 * time.Second)); err != nil {
		return err
	}
	said := make([]byte, 256)
	n, err := conn.Read(said)
	if err != nil {
		return err
	}
	line, _, _ := bytes.Cut(said[:n], []byte("\r\n"))
	fmt.Printf("%s\n", line)
	return nil
}

func numbers(args []string) ([]int, error) {
	var out []int
	for _, a := range args {
		n, err := strconv.Atoi(a)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// socket makes a socket of DOMAIN TYPE PROTOCOL.
func socket(args []string) error {
	n, err := numbers(args)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(n[0], n[1], n[2])
	if err != nil {
		return err
	}
	fmt.Println("made")
	return unix.Close(fd)
}

// ring sets an io_uring up.
func ring([]string) error {
	params := make([]byte, 120)
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params[0])), 0)
	runtime.KeepAlive(params)
	if errno != 0 {
		return errno
	}
	fmt.Println("made")
	return nil
}

// pushInput forges a keystroke on standard input's terminal (TIOCSTI).
func pushInput([]string) error {
	b := []byte("x")
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&b[0])))
	runtime.KeepAlive(b)
	if errno != 0 {
		return errno
	}
	fmt.Println("pushed")
	return nil
}

// unixSocket connects to the socket at PATH.
func unixSocket(args []string) error {
	conn, err := net.Dial("unix", args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Println("connected")
	if _, err := io.WriteString(conn, "GET /v1/status HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	fmt.Printf("%.20q\n", answer)
	return err
}

// writeDescriptor writes to the inherited descriptor N.
func writeDescriptor(args []string) error {
	n, err := numbers(args)
	if err != nil {
		return err
	}
	if _, err := unix.Write(n[0], []byte("marker")); err != nil {
		return err
	}
	fmt.Println("written")
	return nil
}

// kill sends SIGTERM to PID, once it has seen that it may.
func kill(args []string) error {
	n, err := numbers(args)
	if err != nil {
		return err
	}
	if err := unix.Kill(n[0], unix.SIGTERM); err != nil {
		return err
	}
	fmt.Println("killed")
	return nil
}

// attach opens the memory of PID, and traces it.
func attach(args []string) error {
	n, err := numbers(args)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", n[0]), os.O_RDWR, 0); err == nil {
		f.Close()
		fmt.Println("opened")
	}
	if err := unix.PtraceSeize(n[0]); err != nil {
		return err
	}
	fmt.Println("attached")
	return nil
}
