//go:build linux

package sealed

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// say prints a probe's outcome.
func say(err error) int {
	if err != nil {
		fmt.Println("refused:", err)
		return 1
	}
	fmt.Println("done")
	return 0
}

// probeConnect sends a marker to a Unix socket: network, path, marker.
func probeConnect(args []string) int {
	c, err := net.Dial(args[0], args[1])
	if err != nil {
		return say(err)
	}
	defer c.Close()
	_, err = io.WriteString(c, args[2])
	return say(err)
}

// probeWriteFD writes a marker to an inherited descriptor.
func probeWriteFD(args []string) int {
	fd, err := strconv.Atoi(args[0])
	if err != nil {
		return say(err)
	}
	_, err = unix.Write(fd, []byte(args[1]))
	return say(err)
}

func probeKill(args []string) int {
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return say(err)
	}
	return say(unix.Kill(pid, unix.SIGTERM))
}

// probeFamily makes a socket: domain, type, protocol; a domain may be wider
// than the 32 bits that the kernel looks at.
func probeFamily(args []string) int {
	var n [3]uintptr
	for i, a := range args {
		v, err := strconv.ParseUint(a, 0, 64)
		if err != nil {
			return say(err)
		}
		n[i] = uintptr(v)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SOCKET, n[0], n[1], n[2])
	if errno != 0 {
		return say(errno)
	}
	return say(nil)
}

func probeIOURing([]string) int {
	params := make([]byte, 120)
	_, _, errno := unix.RawSyscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params[0])), 0)
	runtime.KeepAlive(params)
	if errno != 0 {
		return say(errno)
	}
	return say(nil)
}

// probeRequestKey has the kernel call the host's /sbin/request-key: that there is
// none, or that it has no such key, says that it was called.
func probeRequestKey([]string) int {
	_, err := unix.RequestKey("user", "exeat:probe", "out", unix.KEY_SPEC_PROCESS_KEYRING)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOKEY) {
		err = nil
	}
	return say(err)
}

// probeI386 calls the kernel by its 32 bit entry: mov eax, 20 (getpid); int 0x80; ret.
func probeI386([]string) int {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return say(err)
	}
	copy(page, []byte{0xb8, 0x14, 0, 0, 0, 0xcd, 0x80, 0xc3})
	code := uintptr(unsafe.Pointer(&page[0]))
	entry := unsafe.Pointer(&code)
	call := *(*func())(unsafe.Pointer(&entry))
	call()
	return say(nil)
}

func probeX32([]string) int {
	unix.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
	return say(nil)
}

// probeIoctl makes an ioctl on standard input with a request of 64 bits.
func probeIoctl(args []string) int {
	request, err := strconv.ParseUint(args[0], 0, 64)
	if err != nil {
		return say(err)
	}
	b := []byte("x\x00\x00\x00")
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, 0, uintptr(request), uintptr(unsafe.Pointer(&b[0])))
	runtime.KeepAlive(b)
	if errno != 0 {
		return say(errno)
	}
	return say(nil)
}

// probeOpen opens a file for writing, and writes nothing.
func probeOpen(args []string) int {
	fd, err := unix.Open(args[0], unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return say(err)
	}
	return say(unix.Close(fd))
}

// probeSysV attaches a System V shared memory segment by its key and reads it.
func probeSysV(args []string) int {
	key, err := strconv.Atoi(args[0])
	if err != nil {
		return say(err)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SHMGET, uintptr(key), 0, 0)
	if errno != 0 {
		return say(errno)
	}
	return say(nil)
}

// timed prints how long something took to fail, or what it brought.
func timed(f func() (string, error)) int {
	begun := time.Now()
	got, err := f()
	took := time.Since(begun).Milliseconds()
	if err != nil {
		fmt.Printf("refused in %d ms: %v\n", took, err)
		return 1
	}
	fmt.Println("got", got)
	return 0
}

// probeTCP reads what the far side of a connection says first.
func probeTCP(args []string) int {
	status := 0
	for _, addr := range args {
		status |= timed(func() (string, error) {
			c, err := net.DialTimeout("tcp", addr, 30*time.Second)
			if err != nil {
				return "", err
			}
			defer c.Close()
			b, err := io.ReadAll(c)
			return string(b), err
		})
	}
	return status
}

// probeUDP asks a question and reads the answer.
func probeUDP(args []string) int {
	return timed(func() (string, error) {
		c, err := net.Dial("udp", args[0])
		if err != nil {
			return "", err
		}
		defer c.Close()
		if _, err := c.Write([]byte("question")); err != nil {
			return "", err
		}
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return "", err
		}
		b := make([]byte, 512)
		n, err := c.Read(b)
		return string(b[:n]), err
	})
}

// probePing sends an echo request through an unprivileged ping socket.
func probePing(args []string) int {
	return timed(func() (string, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
		if err != nil {
			return "", fmt.Errorf("no ping socket: %w", err)
		}
		var to unix.SockaddrInet4
		copy(to.Addr[:], net.ParseIP(args[0]).To4())
		return "echo", unix.Sendto(fd, []byte{8, 0, 0, 0, 0, 0, 0, 1}, 0, &to)
	})
}

// probeLoopback serves and dials itself on addresses of its own.
func probeLoopback(args []string) int {
	for _, host := range args {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return say(err)
		}
		go func() {
			c, err := l.Accept()
			if err == nil {
				io.WriteString(c, "own")
				c.Close()
			}
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return say(err)
		}
		b, err := io.ReadAll(c)
		if err != nil || string(b) != "own" {
			return say(fmt.Errorf("%s: %q, %v", host, b, err))
		}
	}
	return say(nil)
}

func probeDumpable([]string) int {
	if err := Undumpable(); err != nil {
		return say(err)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE, 0, 0)
	n, _, _ := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE, 0, 0)
	fmt.Println("dumpable", n, errno)
	return 0
}

// errnoText is how a probe prints an error number.
func errnoText(e syscall.Errno) string { return "refused: " + e.Error() }

func contains(t interface {
	Helper()
	Errorf(string, ...any)
}, out, want string,
) {
	t.Helper()
	if !strings.Contains(out, want) {
		t.Errorf("got %q, want %q in it", out, want)
	}
}
