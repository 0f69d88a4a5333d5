//go:build !linux

package dnsfilter

import "net"

func newBatcher(conn net.PacketConn) batcher { return newPlainBatcher(conn) }

// kept is an address that outlives the datagram.
func kept(addr net.Addr) net.Addr { return addr }
