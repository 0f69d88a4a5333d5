package firewall

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// agentMain is what a sandboxed program of the tests does: one named thing.
// What it prints is one line, for the test to read.
func agentMain(do string, args []string) int {
	action, ok := agentActions()[do]
	if !ok {
		fmt.Fprintf(os.Stderr, "no action %q\n", do)
		return 2
	}
	if err := action(args); err != nil {
		fmt.Println("error:", err)
		return 0
	}
	fmt.Println("done")
	return 0
}

func stdin() *os.File { return os.Stdin }

func agentActions() map[string]func(args []string) error {
	return map[string]func([]string) error{
		"connect":  agentConnect,
		"send":     agentSend,
		"many":     agentMany,
		"flood":    agentFlood,
		"talk":     agentTalk,
		"attack":   agentAttack,
		"attacks":  agentAttacks,
		"xdp":      agentXDP,
		"hold":     agentHold,
		"probe":    agentProbe,
		"serve":    agentServe,
		"engine":   agentEngine,
		"sendfrom": agentSendFrom,
	}
}

// agentConnect connects by TCP, sends the marker and waits for an echo. It
// prints how long the kernel took to say no.
func agentConnect(args []string) error {
	address, marker := args[0], args[1]
	start := time.Now()
	c, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return outcome(err, start)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(marker)); err != nil {
		return outcome(err, start)
	}
	buf := make([]byte, 4096)
	if _, err = c.Read(buf); err != nil {
		return outcome(err, start)
	}
	return nil
}

// agentSend sends a datagram and waits for an echo.
func agentSend(args []string) error {
	address, marker := args[0], args[1]
	c, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	start := time.Now()
	if err := c.SetDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(marker)); err != nil {
		return outcome(err, start)
	}
	buf := make([]byte, 4096)
	if _, err := c.Read(buf); err != nil {
		return outcome(err, start)
	}
	return nil
}

// outcome words an error shortly, and says when it came.
func outcome(err error, start time.Time) error {
	word := err.Error()
	var errno syscall.Errno
	if errors.As(err, &errno) {
		word = errno.Error()
	} else if os.IsTimeout(err) {
		word = "timeout"
	}
	return fmt.Errorf("%s after %dms", word, time.Since(start).Milliseconds())
}
