package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// index finds the most specific target of one list that matches a request. A
// look-up costs a map access per label of the name, or per prefix length in use,
// and a binary search over the ports of one host; never the number of targets.
type index struct {
	targets []Target // the list's own, shared
	rules   []rule   // [0] is no rule, so that the zero ruleID matches nothing
	slots   []slot
	exact   map[string]span
	wild    map[string]span // by base
	// prefixes by masked prefix; bits4 and bits6 are the lengths in use, longest
	// first.
	prefixes     map[netip.Prefix]span
	bits4, bits6 []int
}

type ruleID int32

// rule is one target, with its text made once so that deciding does not. Of a plain
// name the text is the name itself.
type rule struct {
	text string
	at   int32 // of targets
	tcp  bool
	udp  bool
	icmp bool
}

// slot holds, for one host and one port, the rule reported for each protocol.
type slot struct {
	port    uint16 // 0 = every port
	by      [3]ruleID
	private [3]ruleID // the same, of those with private
	any     ruleID    // whatever the protocol
	// hostPrivate, in a host's first slot alone, is a rule of the host with private.
	hostPrivate ruleID
}

// span is a host's slots: slots[start:end], by ascending port.
type span struct{ start, end uint32 }

// listKind is how a list reads a protocol that was left out.
type listKind uint8

const (
	allowedList listKind = iota
	deniedList
)

func newIndex(targets []Target, kind listKind, prefix string) *index {
	x := &index{
		targets: targets,
		rules:   make([]rule, 1, len(targets)+1),
	}
	var exact, wild, prefixes int
	for i := range targets {
		t := &targets[i]
		switch {
		case t.Wildcard:
			wild++
		case t.IsName():
			exact++
		case t.Prefix.IsValid():
			prefixes++
		}
		if !t.IsName() && !t.Prefix.IsValid() {
			continue // the zero Target names nothing
		}
		r := newRule(t, kind, prefix)
		r.at = int32(i)
		x.rules = append(x.rules, r)
	}
	x.exact, x.wild = make(map[string]span, exact), make(map[string]span, wild)
	x.prefixes = make(map[netip.Prefix]span, prefixes)
	x.build()
	return x
}

// target is what a rule was made of.
func (x *index) target(id ruleID) *Target { return &x.targets[x.rules[id].at] }

func newRule(t *Target, kind listKind, prefix string) rule {
	r := rule{text: t.String()}
	if prefix != "" {
		r.text = prefix + r.text
	}
	protocol := t.Proto
	if protocol == ProtocolUnset {
		protocol = ProtocolAny
		if kind == allowedList && t.IsName() {
			protocol = ProtocolTCP
		}
	}
	switch protocol {
	case ProtocolTCP:
		r.tcp = true
	case ProtocolUDP:
		r.udp = true
	case ProtocolAny, ProtocolUnset:
		r.tcp, r.udp = true, true
		// ICMP has no port: a target with one neither opens nor shuts it. An
		// allowed name opens no ICMP, for `any` on a name adds UDP alone.
		r.icmp = t.Port == 0 && (kind == deniedList || !t.IsName())
	}
	return r
}

// build sorts the rules by host and port and lays out the slots. Which rule of
// equal host, port and protocol is reported depends on the rules' text alone,
// so that their order in the document does not matter.
func (x *index) build() {
	order := make([]ruleID, len(x.rules)-1)
	for i := range order {
		order[i] = ruleID(i + 1)
	}
	slices.SortFunc(order, x.compare)
	x.slots = make([]slot, 0, len(order))
	bits := map[bool]map[int]bool{true: {}, false: {}}
	for i := 0; i < len(order); {
		host := x.target(order[i])
		start := len(x.slots)
		for ; i < len(order) && sameHost(host, x.target(order[i])); i++ {
			x.addToSlots(start, order[i])
		}
		s := span{uint32(start), uint32(len(x.slots))}
		switch {
		case host.Wildcard:
			x.wild[host.Name] = s
		case host.IsName():
			x.exact[host.Name] = s
		default:
			x.prefixes[host.Prefix] = s
			bits[host.Prefix.Addr().Is4()][host.Prefix.Bits()] = true
		}
	}
	x.slots = slices.Clip(x.slots)
	x.bits4, x.bits6 = lengths(bits[true]), lengths(bits[false])
}

func lengths(set map[int]bool) []int {
	var bits []int
	for b := range set {
		bits = append(bits, b)
	}
	slices.SortFunc(bits, func(a, b int) int { return b - a })
	return bits
}

// compare orders by host, then port, then by which is reported first: the narrower
// protocol, the shorter text, the text.
func (x *index) compare(a, b ruleID) int {
	// One after the other, not by cmp.Or, which would compare everything of each pair.
	s, t := x.target(a), x.target(b)
	if d := strings.Compare(s.Name, t.Name); d != 0 {
		return d
	}
	if d := compareBool(s.Wildcard, t.Wildcard); d != 0 {
		return d
	}
	if d := s.Prefix.Addr().Compare(t.Prefix.Addr()); d != 0 {
		return d
	}
	if d := cmp.Compare(s.Prefix.Bits(), t.Prefix.Bits()); d != 0 {
		return d
	}
	if d := cmp.Compare(s.Port, t.Port); d != 0 {
		return d
	}
	q, r := &x.rules[a], &x.rules[b]
	return cmp.Or(
		cmp.Compare(q.width(), r.width()),
		cmp.Compare(len(q.text), len(r.text)),
		strings.Compare(q.text, r.text),
	)
}

func (r *rule) width() int {
	if r.tcp && r.udp {
		return 2
	}
	return 1
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func sameHost(a, b *Target) bool {
	return a.Name == b.Name && a.Wildcard == b.Wildcard && a.Prefix == b.Prefix
}

// addToSlots adds a rule to the slot of its port among slots[start:], which is
// the last one if it exists: rules come by ascending port, the preferred first.
func (x *index) addToSlots(start int, id ruleID) {
	r, t := &x.rules[id], x.target(id)
	if len(x.slots) == start || x.slots[len(x.slots)-1].port != t.Port {
		x.slots = append(x.slots, slot{port: t.Port})
	}
	s := &x.slots[len(x.slots)-1]
	if s.any == 0 {
		s.any = id
	}
	for p, covers := range [3]bool{TCP: r.tcp, UDP: r.udp, ICMP: r.icmp} {
		if covers && s.by[p] == 0 {
			s.by[p] = id
		}
		if covers && t.IsPrivate() && s.private[p] == 0 {
			s.private[p] = id
		}
	}
	if first := &x.slots[start]; first.hostPrivate == 0 && t.IsPrivate() {
		first.hostPrivate = id
	}
}

// want says what a look-up looks for in a host's slots.
type want uint8

const (
	// wantMatch is a rule for the port and the protocol.
	wantMatch want = iota
	// wantPrivate is one with private.
	wantPrivate
	// wantPort is a rule for the port, whatever the protocol.
	wantPort
	// wantHost is any rule of the host: a DNS question has no port, and is asked
	// for the sake of whichever the targets open.
	wantHost
	// wantHostPrivate is any rule of the host with private.
	wantHostPrivate
	// wantWhole is a rule of every port and protocol. Only such a denied name
	// denies the DNS question too: the name is still needed for what is left open.
	wantWhole
)

// find returns the most specific rule among a host's slots.
func (x *index) find(s span, w want, port uint16, p Protocol) ruleID {
	slots := x.slots[s.start:s.end]
	switch w {
	case wantHost:
		return slots[x.firstPort(slots)].any
	case wantHostPrivate:
		return slots[0].hostPrivate
	case wantWhole:
		if slots[0].port == 0 {
			return slots[0].by[ICMP] // ICMP is covered by no other kind of rule
		}
		return 0
	case wantMatch, wantPrivate, wantPort:
	}
	if port != 0 && p != ICMP {
		i, found := slices.BinarySearchFunc(slots, port, func(s slot, port uint16) int { return cmp.Compare(s.port, port) })
		if found {
			if id := slots[i].pick(w, p); id != 0 {
				return id
			}
		}
	}
	if slots[0].port == 0 {
		return slots[0].pick(w, p)
	}
	return 0
}

// firstPort is the slot reported for a host asked about without a port: with a
// port before without, the lowest.
func (x *index) firstPort(slots []slot) int {
	if slots[0].port == 0 && len(slots) > 1 {
		return 1
	}
	return 0
}

func (s *slot) pick(w want, p Protocol) ruleID {
	if int(p) >= len(s.by) {
		return 0
	}
	switch w {
	case wantMatch:
		return s.by[p]
	case wantPrivate:
		return s.private[p]
	case wantPort, wantHost, wantHostPrivate, wantWhole:
	}
	return s.any
}

// name finds the most specific name target: exact, then the longest wildcard.
func (x *index) name(name string, w want, port uint16, p Protocol) ruleID {
	if name == "" || len(x.exact)+len(x.wild) == 0 {
		return 0
	}
	if s, found := x.exact[name]; found {
		if id := x.find(s, w, port, p); id != 0 {
			return id
		}
	}
	if len(x.wild) == 0 {
		return 0
	}
	for base := name; ; {
		dot := strings.IndexByte(base, '.')
		if dot < 0 {
			return 0
		}
		base = base[dot+1:]
		if s, found := x.wild[base]; found {
			if id := x.find(s, w, port, p); id != 0 {
				return id
			}
		}
	}
}

// addr finds the most specific address target: the longest prefix.
func (x *index) addr(addr netip.Addr, w want, port uint16, p Protocol) ruleID {
	if !addr.IsValid() {
		return 0
	}
	bits := x.bits6
	if addr.Is4() {
		bits = x.bits4
	}
	for _, b := range bits {
		prefix, err := addr.Prefix(b)
		if err != nil {
			return 0
		}
		if s, found := x.prefixes[prefix]; found {
			if id := x.find(s, w, port, p); id != 0 {
				return id
			}
		}
	}
	return 0
}

// family finds a target that covers all of IPv4 or of IPv6; with a port before
// without, the lowest first, then IPv4 before IPv6.
func (x *index) family(w want, port uint16, p Protocol) ruleID {
	v4 := x.prefix(netip.PrefixFrom(netip.IPv4Unspecified(), 0), w, port, p)
	v6 := x.prefix(netip.PrefixFrom(netip.IPv6Unspecified(), 0), w, port, p)
	if v4 == 0 || v6 == 0 {
		return max(v4, v6)
	}
	// Every port counts as the highest: 0-1 is 65535 in a uint16.
	if x.target(v6).Port-1 < x.target(v4).Port-1 {
		return v6
	}
	return v4
}

func (x *index) prefix(prefix netip.Prefix, w want, port uint16, p Protocol) ruleID {
	if s, found := x.prefixes[prefix]; found {
		return x.find(s, w, port, p)
	}
	return 0
}

func (x *index) holdsName() bool { return len(x.exact)+len(x.wild) > 0 }

// addressRules are the address targets in document order, for the kernel.
func (x *index) addressRules() []AddressRule {
	var rules []AddressRule
	for i := range x.rules[1:] {
		r, t := &x.rules[1+i], x.target(ruleID(1+i))
		if t.IsName() {
			continue
		}
		if rules == nil {
			rules = make([]AddressRule, 0, len(x.rules)-1-i)
		}
		rules = append(rules, AddressRule{
			Prefix: t.Prefix, Port: t.Port,
			TCP: r.tcp, UDP: r.udp, ICMP: r.icmp, Rule: r.text,
		})
	}
	return rules
}
