package firewall

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

func TestPacketsAreReadAsFarAsTheyGo(t *testing.T) {
	v4 := ipv4UDP("198.51.100.2", netip.MustParseAddrPort("203.0.113.9:53"))("question")
	fragment := ipv4Packet(unix.IPPROTO_UDP, "198.51.100.2", "203.0.113.9", []byte("middle of something"), nil, 0x00ff)
	v6 := append([]byte{0x60, 0, 0, 0, 0, 16, unix.IPPROTO_DSTOPTS, 64}, netip.MustParseAddr("2001:db8::2").AsSlice()...)
	v6 = append(v6, netip.MustParseAddr("2001:db8::9").AsSlice()...)
	v6 = append(v6, unix.IPPROTO_TCP, 0, 1, 4, 0, 0, 0, 0, 0x1f, 0x90, 0x01, 0xbb)
	for _, c := range []struct {
		why  string
		b    []byte
		dst  string
		port uint16
		ok   bool
	}{
		{"IPv4 UDP", v4, "203.0.113.9", 53, true},
		{"a later fragment has no ports", fragment, "203.0.113.9", 0, true},
		{"IPv4 cut off within its header", v4[:12], "", 0, false},
		{"IPv4 cut off before its ports", v4[:20], "203.0.113.9", 0, true},
		{"IPv6 behind an extension header", v6, "2001:db8::9", 443, true},
		{"IPv6 cut off within the extension header", v6[:41], "2001:db8::9", 0, true},
		{"nothing", nil, "", 0, false},
		{"neither version", []byte{0x50, 1, 2}, "", 0, false},
	} {
		t.Run(c.why, func(t *testing.T) {
			p, ok := parsePacket(c.b)
			if ok != c.ok || p.dport != c.port || ok && p.dst.String() != c.dst {
				t.Errorf("%+v, %v", p, ok)
			}
		})
	}
}

func FuzzPacketsOfAnAttacker(f *testing.F) {
	f.Add(ipv4UDP("198.51.100.2", netip.MustParseAddrPort("203.0.113.9:53"))("x"))
	f.Add([]byte{0x60})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parsePacket(b); ok && !p.dst.IsValid() {
			t.Error("read a packet without a destination")
		}
		parseFrame(b)
	})
}

func FuzzNetlinkMessages(f *testing.F) {
	f.Add(appendMessage(nil, ulogPacket, 0, 1, appendAttrString(nfgen(Inet, 0), ulogAttrPrefix, "deny unlisted")))
	f.Add(appendMessage(nil, ctGet, 0, 1, appendAttr(nfgen(Inet, 0), ctTupleOrig, []byte{8, 0, 1, 0, 1, 2, 3, 4})))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := Log{LogConfig: LogConfig{Policy: nowhere{}, Names: namesOf{}, Log: &recorder{}}}
		err := eachMessage(b, func(h unix.NlMsghdr, data []byte) error {
			if _, err := parseTuple(data); err != nil && !strings.Contains(err.Error(), "short") {
				t.Error(err)
			}
			if _, _, err := parseDiag(data); err != nil && len(data) >= diagMsgSize {
				t.Error(err)
			}
			return l.message(h, data)
		})
		if err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}

type nowhere struct{}

func (nowhere) Load() *policy.Compiled { return nil }

func TestGapsInTheKernelsLogAreCountedAndTold(t *testing.T) {
	r := &recorder{}
	l := Log{LogConfig: LogConfig{Log: r}}
	for _, seq := range []uint32{7, 8, 12, 13} {
		l.count(seq)
	}
	if l.Lost() != 3 {
		t.Errorf("lost %d, want 3", l.Lost())
	}
	if !r.find(func(e audit.Event) bool { return e.Folded == 3 }) {
		t.Errorf("no event tells of it: %+v", r.events)
	}
}

func TestOverlappingRangesAreMergedForTheKernel(t *testing.T) {
	rule := func(prefix string, port uint16) policy.AddressRule {
		return policy.AddressRule{Prefix: netip.MustParsePrefix(prefix), Port: port, TCP: true}
	}
	for _, c := range []struct {
		why   string
		rules []policy.AddressRule
		want  string
	}{
		{"neighbours join", []policy.AddressRule{rule("10.0.0.0/25", 0), rule("10.0.0.128/25", 0)}, "10.0.0.0/24 . 0-65535 . tcp"},
		{"a port within every port goes", []policy.AddressRule{rule("10.0.1.0/24", 443), rule("10.0.0.0/16", 0)}, "10.0.0.0/16 . 0-65535 . tcp"},
		{"a port partly within every port is cut", []policy.AddressRule{rule("10.0.0.0/24", 443), rule("10.0.0.0/25", 0)}, "10.0.0.0/25 . 0-65535 . tcp, 10.0.0.128/25 . 443 . tcp"},
		{"two ports of one range stay", []policy.AddressRule{rule("10.0.0.0/24", 443), rule("10.0.0.0/24", 80)}, "10.0.0.0/24 . 80 . tcp, 10.0.0.0/24 . 443 . tcp"},
		{"every address", []policy.AddressRule{rule("0.0.0.0/0", 0)}, "0.0.0.0/0 . 0-65535 . tcp"},
	} {
		t.Run(c.why, func(t *testing.T) {
			f := families()[0]
			s := f.netSet("allow")
			s.Elements = f.rangeElements(c.rules)
			if got := s.elementList(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestAFloodOfAttacksIsAFewEventsThatStandForAll(t *testing.T) {
	r := &recorder{}
	heard := 0
	l := Log{LogConfig: LogConfig{Log: r, Attack: func() { heard++ }}}
	at := time.Unix(1_000_000_000, 0)
	const packets = 100_000
	for i := range packets {
		l.attack(packet{}, at.Add(time.Duration(i)*100*time.Microsecond)) // in ten seconds
	}
	l.attack(packet{}, at.Add(time.Minute))
	if n := len(r.events); n < attackBurst || n > attackBurst+12 {
		t.Errorf("%d events, want a burst of %d and one a second", n, attackBurst)
	}
	var told uint64
	for _, e := range r.events {
		told += max(e.Folded, 1)
	}
	if told != packets+1 || heard != packets+1 {
		t.Errorf("the events stand for %d attacks, and %d were acted on; want all %d", told, heard, packets+1)
	}
}
