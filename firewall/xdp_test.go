package firewall

import (
	"errors"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// agentXDP takes the first queue of eth0, from which it could send unseen.
func agentXDP([]string) error {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	return withSocket(unix.AF_XDP, unix.SOCK_RAW, 0, func(fd int) error {
		page, err := bindXDP(fd, link.Index, 0)
		if err != nil {
			return err
		}
		return unix.Munmap(page)
	})
}

func TestTheAgentFindsNoQueueOfALinkThatIsHeld(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	if out := l.agent("xdp"); strings.Contains(out, "not supported") {
		require.Skip(t, "no AF_XDP in this kernel")
	} else if out != "done" {
		t.Fatalf("a free queue: %s", out)
	}
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	var q *Queues
	// A queue is free again some milliseconds after its socket is closed.
	waitFor(t, func() bool { q, err = HoldQueues(link.Index); return !errors.Is(err, unix.EBUSY) })
	if err != nil {
		t.Fatal(err)
	}
	if len(q.Files()) == 0 {
		t.Error("no queue was held")
	}
	if out := l.agent("xdp"); !strings.Contains(out, "resource busy") {
		t.Errorf("a held queue: %s, want EBUSY", out)
	}
	if out := l.agent("connect", net.JoinHostPort(allowed4, "22"), "hello"); out != "done" {
		t.Errorf("traffic through a held link: %s", out)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}
