//go:build !linux

package dnsfilter

import "net"

func newBatcher(conn net.PacketConn) batcher { return newPlainBatcher(conn) }

// kept is an address that outlives the datagram.
func kept(addr net.Addr) net.Addr { return addr }

// answerTo sends one datagram to who asked.
func answerTo(conn net.PacketConn, msg []byte, to net.Addr) error {
	_, err := conn.WriteTo(msg, to)
	return err
}

// writeTo sends one message over a connection of whatever kind.
func writeTo(conn net.Conn, msg []byte) error {
	_, err := conn.Write(msg)
	return err
}

func sendAndRead(e *epoch, conn net.Conn, msg, into []byte) (int, error) {
	return sendThenRead(e, conn, msg, into)
}
