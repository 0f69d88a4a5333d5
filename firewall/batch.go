package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// batch is one nftables transaction: all of it happens, or nothing.
type batch struct {
	buf    []byte
	labels []string // what each message does, for errors
	last   int      // where the last message begins
	err    error
	dry    bool // without its end, so that the kernel checks it and takes it back
}

// nfnetlink message types.
const nfTables = unix.NFNL_SUBSYS_NFTABLES << 8

// elementsPerMessage keeps a message of elements far below the 64 KiB at which
// its length wraps without an error (nftables-notes, trap 4).
const elementsPerMessage = 500

func newBatch() *batch {
	b := &batch{}
	b.buf = appendMessage(b.buf, unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, 0, nfgen(0, unix.NFNL_SUBSYS_NFTABLES))
	return b
}

// nfgen is struct nfgenmsg: family, version, resource (big-endian).
func nfgen(family Family, resource uint16) []byte {
	return []byte{byte(family), unix.NFNETLINK_V0, byte(resource >> 8), byte(resource)}
}

func (b *batch) empty() bool { return len(b.labels) == 0 }

// add appends one message.
func (b *batch) add(label string, typ, flags uint16, data []byte) {
	b.last = len(b.buf)
	b.labels = append(b.labels, label)
	b.buf = appendMessage(b.buf, typ, flags, uint32(len(b.labels)), data)
}

// message is one nftables message, ready to send.
type message struct {
	typ, flags uint16
	data       []byte
}

// record gives the messages that google/nftables makes of f. They are caught
// before they are sent, since we send on a socket of our own: one that may come
// from another namespace, and whose errors name the rule.
func record(f func(c *nftables.Conn) error) ([]message, error) {
	var caught []message
	c, err := nftables.New(nftables.WithTestDial(func(msgs []netlink.Message) ([]netlink.Message, error) {
		var acks []netlink.Message
		for _, m := range msgs {
			if m.Header.Flags&netlink.Acknowledge == 0 {
				continue // the library's own begin and end
			}
			// No echo and no acknowledgements but the last one's: with one a message
			// the receive buffer overflows (trap 5).
			caught = append(caught, message{uint16(m.Header.Type), uint16(m.Header.Flags) &^ uint16(netlink.Acknowledge|netlink.Echo), m.Data})
			acks = append(acks, netlink.Message{
				Header: netlink.Header{Length: 4, Type: netlink.Error, Sequence: m.Header.Sequence, PID: m.Header.PID},
				Data:   make([]byte, 4),
			})
		}
		return acks, nil
	}))
	if err != nil {
		return nil, err
	}
	return caught, errors.Join(f(c), c.Flush())
}

// append adds recorded messages.
func (b *batch) append(label string, msgs []message, err error) {
	if err != nil {
		b.err = errors.Join(b.err, fmt.Errorf("%s: %w", label, err))
		return
	}
	for _, m := range msgs {
		b.add(label, m.typ, m.flags, m.data)
	}
}

// elements adds (or with NFT_MSG_DELSETELEM deletes) elements of a named set.
func (b *batch) elements(family Family, table, name string, s Set, msg uint16, elems []Element) {
	flags := uint16(unix.NLM_F_REQUEST)
	if msg == unix.NFT_MSG_NEWSETELEM {
		flags |= unix.NLM_F_CREATE
	}
	for len(elems) > 0 {
		n := min(len(elems), elementsPerMessage)
		data := nfgen(family, 0)
		data = appendAttrString(data, unix.NFTA_SET_ELEM_LIST_TABLE, table)
		data = appendAttrString(data, unix.NFTA_SET_ELEM_LIST_SET, name)
		var list int
		data, list = beginNested(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, e := range elems[:n] {
			data = s.appendElement(data, e, msg == unix.NFT_MSG_NEWSETELEM)
		}
		endNested(data, list)
		b.add("set "+name, nfTables|msg, flags, data)
		elems = elems[n:]
	}
}

// appendElement encodes one element; a range of a single field takes two, its
// start and, one past its end, an "interval end".
func (s Set) appendElement(b []byte, e Element, adding bool) []byte {
	timeout := e.Timeout
	if !adding || !s.Timeout {
		timeout = 0
	}
	key := s.wireKey(e.Key)
	switch {
	case !s.Interval:
		return appendElement(b, key, "", timeout, false)
	case len(s.Fields) > 1:
		end := e.End
		if end == "" {
			end = e.Key
		}
		return appendElement(b, key, end, timeout, false)
	}
	b = appendElement(b, key, "", timeout, false)
	end := e.End
	if end == "" {
		end = e.Key
	}
	if past, ok := increment(s.wireKey(end)); ok {
		b = appendElement(b, past, "", timeout, true)
	}
	return b
}

// increment adds one to a big-endian number; false when it overflows.
func increment(key string) (string, bool) {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]++
		if b[i] != 0 {
			return string(b), true
		}
	}
	return "", false
}

// attrKeyEnd is NFTA_SET_ELEM_KEY_END (Linux 5.6).
const attrKeyEnd = 10

func appendElement(b []byte, key, end string, timeout time.Duration, intervalEnd bool) []byte {
	b, elem := beginNested(b, unix.NFTA_LIST_ELEM)
	if intervalEnd {
		b = appendAttr(b, unix.NFTA_SET_ELEM_FLAGS, binary.BigEndian.AppendUint32(nil, unix.NFT_SET_ELEM_INTERVAL_END))
	}
	b = appendDataValue(b, unix.NFTA_SET_ELEM_KEY, key)
	if end != "" {
		b = appendDataValue(b, attrKeyEnd, end)
	}
	if timeout > 0 {
		var ms [8]byte
		binary.BigEndian.PutUint64(ms[:], uint64(timeout.Milliseconds()))
		b = appendAttr(b, unix.NFTA_SET_ELEM_TIMEOUT, ms[:])
	}
	endNested(b, elem)
	return b
}

func appendDataValue(b []byte, typ uint16, value string) []byte {
	b, at := beginNested(b, typ)
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, unix.NFTA_DATA_VALUE)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	endNested(b, at)
	return b
}

// run sends the batch and returns when the kernel has put it in force. An error
// means that nothing changed, and names every message that was refused.
func (s *socket) run(b *batch) error {
	switch {
	case b.err != nil:
		return b.err
	case b.empty():
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Answers to a batch that we gave up on must not be taken for ours.
	if err := s.receive(func(unix.NlMsghdr, []byte) error { return nil }); err != nil {
		return err
	}
	msg := b.buf
	if !b.dry {
		msg = appendMessage(msg, unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, uint32(len(b.labels)+1), nfgen(0, unix.NFNL_SUBSYS_NFTABLES))
	}
	if len(msg) > s.room {
		return fmt.Errorf("a transaction of %d bytes, while the kernel takes %d (net.core.wmem_max)", len(msg), s.room)
	}
	flags := binary.NativeEndian.Uint16(msg[b.last+6:])
	binary.NativeEndian.PutUint16(msg[b.last+6:], flags|unix.NLM_F_ACK)
	if err := s.send(msg); err != nil {
		return err
	}
	acknowledged := false
	var refused error
	err := s.receive(func(h unix.NlMsghdr, data []byte) error {
		if h.Type != unix.NLMSG_ERROR {
			return nil
		}
		err := errno(data)
		if err == nil {
			acknowledged = acknowledged || h.Seq == uint32(len(b.labels))
			return nil
		}
		label := "transaction"
		if h.Seq >= 1 && int(h.Seq) <= len(b.labels) {
			label = b.labels[h.Seq-1]
		}
		refused = errors.Join(refused, fmt.Errorf("%s: %w", label, err))
		return nil
	})
	switch {
	case refused != nil || err != nil:
		return errors.Join(refused, err)
	case !acknowledged:
		return errors.New("the kernel did not acknowledge the transaction")
	}
	return nil
}
