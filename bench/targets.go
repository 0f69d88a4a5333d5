//go:build linux

package main

// targets lists what is measured, in order.
func targets() []target {
	return []target{
		{"P1", "bulk", bulk},
		{"P2", "bulk beside idle tunnels", bulkBesideIdle},
		{"P3", "memory and descriptors of idle tunnels", idleTunnels},
		{"P4", "connection set-up", setup},
		{"P5", "resolver", questions},
		{"P6", "answers that must reach the kernel first", answers},
		{"P7", "swap, from the call until the kernel enforces it", swaps},
		{"P8", "revocation of proxied flows", revocation},
		{"P8-direct", "revocation of direct flows", directRevocation},
		{"P9", "round trip of an established flow", roundTrip},
		{"P10", "start", starts},
		{"P10-exeatd", "start of the sidecar", daemonStarts},
		{"P11", "what goes straight out", straightOut},
		{"memory", "of our process", memory},
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

// against adds a verdict on ours relative to a peer's, where that was measured.
func against(verdicts []verdict, what, peer string, ours, theirs figure, measured bool, limit float64, atLeast bool) []verdict {
	if !measured || theirs.median == 0 {
		return verdicts
	}
	return append(verdicts, verdict{
		what: what + " ÷ " + peer + "'s", got: ours.median / theirs.median, limit: limit, atLeast: atLeast, ratio: true,
	})
}
