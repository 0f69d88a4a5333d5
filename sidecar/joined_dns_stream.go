//go:build linux

package sidecar

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// catchStream is catch for the questions that come in streams: an engine's DNS
// asks in one what it was asked in one. Others' connections are ended, and tried
// again by their clients.
func catchStream(ctx context.Context, ln *net.TCPListener, name string, caught chan<- netip.AddrPort) {
	stop := context.AfterFunc(ctx, func() {
		if err := ln.SetDeadline(time.Unix(1, 0)); err != nil {
			return // it is closed
		}
	})
	defer stop()
	for {
		conn, err := ln.AcceptTCP()
		if err != nil {
			return
		}
		if from, ok := questionOf(ctx, conn, name); ok {
			caught <- from // which has room for one a socket
			return
		}
	}
}

// questionOf says who asks for name in a connection, and ends it.
func questionOf(ctx context.Context, conn *net.TCPConn, name string) (from netip.AddrPort, ok bool) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(discoveryTimeout / 4)); err != nil {
		return from, false
	}
	m, err := (&dns.Conn{Conn: conn}).ReadMsg()
	if err != nil || len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, name) {
		return from, false
	}
	at, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return from, false
	}
	from = at.AddrPort()
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), true
}
