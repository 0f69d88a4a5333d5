//go:build linux

package torture

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sort"
	"strings"
)

// target is a name or an address that flows go to. Each name has an address of
// its own, so that the far side's tap tells them apart.
type target struct {
	rule string // as a policy names it
	name string // as the agent does
	addr netip.Addr
}

// targetsOf makes names and addresses, and tells the little internet of them.
func targetsOf(shape string, names, addresses int) []target {
	// A block for each shape: both may run at once.
	block := map[string]int{"sealed": 10, "joined": 100}[shape]
	var all []target
	for i := range names {
		name := fmt.Sprintf("t%d.%s.torture.test", i, shape)
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(block + i)})
		world.SetName(name, "A "+addr.String())
		all = append(all, target{name, name, addr})
	}
	for i := range addresses {
		addr := netip.AddrFrom4([4]byte{198, 51, 100, byte(block + 60 + i)})
		all = append(all, target{addr.String(), addr.String(), addr})
	}
	return all
}

// isAddress says that the target is one by address.
func (t target) isAddress() bool { return t.name == t.addr.String() }

// stance is a policy with what it means for the targets.
type stance struct {
	document string
	allowed  []bool
	// straight says that flows may have gone straight out and shown no name: the
	// next swap may cut those to names (design.md, promise 2).
	straight bool
	// holds says that a denied name is in force: TCP to addresses that are allowed
	// goes through the proxy then, and what went straight out before has shown no name.
	holds bool
}

// randomStance allows a random part of the targets, in a random way of writing it.
func randomStance(r *rand.Rand, targets []target, joined bool) stance {
	s := stance{allowed: make([]bool, len(targets))}
	switch r.IntN(20) {
	case 0:
		s.document = `"no-network"`
		return s
	case 1:
		for i := range s.allowed {
			s.allowed[i] = true
		}
		s.document, s.straight = `"public"`, joined
		return s
	}
	for i := range s.allowed {
		s.allowed[i] = r.IntN(3) > 0
	}
	var yes, no, addresses []string
	for i, t := range targets {
		switch {
		case s.allowed[i] && t.isAddress():
			addresses = append(addresses, t.rule)
			yes = append(yes, t.rule)
		case s.allowed[i]:
			yes = append(yes, t.rule)
		default:
			no = append(no, t.rule)
		}
	}
	switch r.IntN(4) {
	case 0: // a wildcard with holes, besides addresses
		names := make([]string, 0, len(no))
		for _, n := range no {
			if strings.HasSuffix(n, ".test") {
				names = append(names, n)
			}
		}
		s.document, s.holds = written("allowlist", append(addresses, "*.torture.test"), names), joined && len(names) > 0
	case 1:
		s.document, s.holds = written("denylist", nil, append(no, "nobody.torture.test")), joined
	default:
		s.document = written("allowlist", append(yes, "nobody.torture.test"), nil)
	}
	return s
}

func written(mode string, allowed, denied []string) string {
	document := map[string]any{"network_mode": mode}
	if allowed != nil {
		document["allowed_hosts"] = allowed
	}
	if len(denied) > 0 {
		document["denied_hosts"] = denied
	}
	data, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// span is a time, in nanoseconds of Unix; to is exclusive.
type span struct{ from, to int64 }

// history is what the swaps were answered, target by target.
type history struct {
	// forbidden are the times in which nothing may pass: from the answer to a swap
	// that forbids to the request of one that allows.
	forbidden map[netip.Addr][]span
	// loose are the times in which a flow may have been cut: from the request of a
	// swap that forbids to the answer of one that allows.
	loose map[netip.Addr][]span
	// shown are the swaps that may have cut TCP to addresses, for it had shown no name.
	shown []span

	now    stance
	recent []swapped
}

// swapped is a swap, for complaints.
type swapped struct {
	span
	document string
}

// forever ends a span that has not ended.
const forever = int64(1) << 62

func newHistory(targets []target, first stance) *history {
	h := &history{forbidden: map[netip.Addr][]span{}, loose: map[netip.Addr][]span{}, now: first}
	for i, t := range targets {
		if !first.allowed[i] {
			h.forbidden[t.addr] = []span{{0, forever}}
			h.loose[t.addr] = []span{{0, forever}}
		}
	}
	return h
}

// swapped notes a swap that was asked for and answered.
func (h *history) swapped(targets []target, next stance, asked, answered int64) {
	for i, t := range targets {
		was, is := h.now.allowed[i], next.allowed[i]
		switch {
		case was && !is:
			h.forbidden[t.addr] = append(h.forbidden[t.addr], span{answered, forever})
			h.loose[t.addr] = append(h.loose[t.addr], span{asked, forever})
		case !was && is:
			last(h.forbidden[t.addr]).to = asked
			last(h.loose[t.addr]).to = answered
		case h.now.straight && is && !t.isAddress():
			h.loose[t.addr] = append(h.loose[t.addr], span{asked, answered})
		}
	}
	if !h.now.holds && next.holds {
		h.shown = append(h.shown, span{asked, answered})
	}
	h.now = next
	h.recent = append(h.recent, swapped{span{asked, answered}, next.document})
	if len(h.recent) > 300 {
		h.recent = h.recent[150:]
	}
}

// during lists the swaps of a time.
func (h *history) during(from, to int64) string {
	var text strings.Builder
	for _, s := range h.recent {
		if s.to >= from && s.from <= to {
			fmt.Fprintf(&text, "\n  %d %d %s", s.from, s.to, s.document)
		}
	}
	return text.String()
}

func last(spans []span) *span { return &spans[len(spans)-1] }

// overlaps says whether any of the spans has part in from..to, both inclusive.
func overlaps(spans []span, from, to int64) bool {
	i := sort.Search(len(spans), func(i int) bool { return spans[i].to > from })
	return i < len(spans) && spans[i].from <= to
}
