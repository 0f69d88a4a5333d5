package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// WatchRules calls changed whenever somebody else changes one of our tables, or
// may have (notifications were lost): the rules must be applied again (bypass.md
// B47). Open it in the namespace of the calling thread, before Apply; ours are
// the changes that come over k's socket.
type WatchRules struct {
	feed  *feed
	ours  uint32
	table string
}

// nftablesGroup is NFNLGRP_NFTABLES.
const nftablesGroup = 7

// OpenWatchRules subscribes; Run reports.
func OpenWatchRules(k *Kernel) (*WatchRules, error) {
	port, err := k.sock.port()
	if err != nil {
		return nil, err
	}
	f, err := openFeed(unix.NETLINK_NETFILTER, 1<<(nftablesGroup-1))
	if err != nil {
		return nil, err
	}
	if err := f.ignore(port); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return &WatchRules{feed: f, ours: port, table: TableName}, nil
}

// ignore has the kernel drop what tells of requests from a port, lest a large
// swap of ours overflows the socket and looks like somebody else's change.
func (f *feed) ignore(port uint32) error {
	raw, err := f.file.SyscallConn()
	if err != nil {
		return err
	}
	// The port stands at offset 12 of the header, in native order; the filter
	// loads it as if it were big-endian.
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(native32(port))},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	filter := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	var attachErr error
	err = raw.Control(func(fd uintptr) {
		attachErr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter)
	})
	return errors.Join(err, os.NewSyscallError("setsockopt(SO_ATTACH_FILTER)", attachErr))
}

// Run reports until the context ends, which is no error: once for each
// transaction of somebody else, after its end. what says in a few words what
// happened.
func (w *WatchRules) Run(ctx context.Context, changed func(what string)) error {
	pending := ""
	return w.feed.run(ctx, func(h unix.NlMsghdr, data []byte) error {
		if h.Pid == w.ours || h.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(data) < 4 {
			return nil
		}
		if h.Type&0xff == unix.NFT_MSG_NEWGEN { // the last message of each transaction
			if pending != "" {
				changed(pending)
			}
			pending = ""
			return nil
		}
		what := ruleMessage(h.Type & 0xff)
		if what == "" {
			return nil
		}
		var table string
		// Attribute 1 is the table's name in every message that we look at.
		err := attributes(data[4:], func(typ uint16, b []byte) {
			if typ == 1 {
				table = cString(b)
			}
		})
		// One word for the whole of it: the first, but that the table is gone says more.
		if err == nil && table == w.table && (pending == "" || h.Type&0xff == unix.NFT_MSG_DELTABLE) {
			pending = fmt.Sprintf("somebody else %s in table %s %s", what, Family(data[0]), table)
		}
		return err
	}, func() {
		pending = ""
		changed("notifications of changes were lost")
	})
}

// Close ends the subscription; Run must have returned.
func (w *WatchRules) Close() error { return w.feed.close() }

// ruleMessage says what a notification tells; nothing for what expires.
func ruleMessage(typ uint16) string {
	switch typ {
	case unix.NFT_MSG_NEWTABLE:
		return "changed the table"
	case unix.NFT_MSG_DELTABLE:
		return "deleted the table"
	case unix.NFT_MSG_NEWCHAIN:
		return "added a chain"
	case unix.NFT_MSG_DELCHAIN:
		return "deleted a chain"
	case unix.NFT_MSG_NEWRULE:
		return "added a rule"
	case unix.NFT_MSG_DELRULE:
		return "deleted a rule"
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		return "changed a set"
	case unix.NFT_MSG_NEWSETELEM:
		return "added set elements"
	case unix.NFT_MSG_DELSETELEM:
		return "deleted set elements"
	}
	return ""
}

// Link is a network link of the namespace.
type Link struct {
	Index int
	Name  string
	// Gone says that it was deleted, or moved to another namespace.
	Gone bool
}

// WatchLinks tells of links: those that are there, and every change (B21).
type WatchLinks struct{ feed *feed }

// Of linux/rtnetlink.h.
const (
	linkGroup    = 1 // RTMGRP_LINK
	linkInfoSize = 16
)

// OpenWatchLinks subscribes in the namespace of the calling thread.
func OpenWatchLinks() (*WatchLinks, error) {
	f, err := openFeed(unix.NETLINK_ROUTE, linkGroup)
	if err != nil {
		return nil, err
	}
	if err := f.request(unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, linkInfoSize)); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return &WatchLinks{f}, nil
}

// Run calls seen for each link that is there, then for each change, until the
// context ends, which is no error. It is an error when changes were lost: what
// links there are is then unknown.
func (w *WatchLinks) Run(ctx context.Context, seen func(Link)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errLost := errors.New("changes of links were lost")
	err := w.feed.run(ctx, func(h unix.NlMsghdr, data []byte) error {
		if h.Type != unix.RTM_NEWLINK && h.Type != unix.RTM_DELLINK || len(data) < linkInfoSize {
			return nil
		}
		l := Link{Index: int(binary.NativeEndian.Uint32(data[4:])), Gone: h.Type == unix.RTM_DELLINK}
		err := attributes(data[linkInfoSize:], func(typ uint16, b []byte) {
			if typ == unix.IFLA_IFNAME {
				l.Name = cString(b)
			}
		})
		if err == nil && l.Name != "" {
			seen(l)
		}
		return err
	}, func() { cancel(errLost) })
	if err == nil && errors.Is(context.Cause(ctx), errLost) {
		return errLost
	}
	return err
}

// Close ends the subscription; Run must have returned.
func (w *WatchLinks) Close() error { return w.feed.close() }
