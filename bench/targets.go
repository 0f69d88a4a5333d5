//go:build linux

package main

// targets lists what is measured, in order.
func targets() []target {
	return []target{
		{"P1", "bulk", bulk, true},
		{"P2", "bulk beside idle tunnels", bulkBesideIdle, true},
		{"P3", "memory and descriptors of idle tunnels", idleTunnels, true},
		{"P4", "connection set-up", setup, true},
		{"P5", "resolver", questions, true},
		{"P6", "answers that must reach the kernel first", answers, false},
		{"P7", "swap, from the call until the kernel enforces it", swaps, false},
		{"P8", "revocation of proxied flows", revocation, false},
		{"P8-direct", "revocation of direct flows", directRevocation, false},
		{"P9", "round trip of an established flow", roundTrip, true},
		{"P10", "start", starts, false},
		{"P10-exeatd", "start of the sidecar", daemonStarts, false},
		{"recovery", "of connections, when exeatd's worker is killed", recovery, false},
		{"P11", "what goes straight out", straightOut, true},
		{"memory", "of our process", memory, false},
	}
}

// named finds a peer; nil when it is not measured.
func (l *lab) named(name string) *peer {
	for _, p := range l.peers {
		if p.name == name {
			return p
		}
	}
	return nil
}
