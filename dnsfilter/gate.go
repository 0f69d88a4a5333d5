package dnsfilter

import (
	"net/netip"
	"sync"
)

// gate bounds how many questions wait for an upstream, in all and for each client.
type gate struct {
	all, each int

	mu      sync.Mutex
	total   int
	clients map[netip.Addr]int
}

func newGate(all, each int) *gate {
	return &gate{all: all, each: each, clients: make(map[netip.Addr]int)}
}

// enter takes a place for client; leave must follow where it is true.
func (g *gate) enter(client netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= g.all || g.clients[client] >= g.each {
		return false
	}
	g.total++
	g.clients[client]++
	return true
}

func (g *gate) leave(client netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total--
	if g.clients[client]--; g.clients[client] == 0 {
		delete(g.clients, client)
	}
}
