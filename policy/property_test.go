package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// random makes documents and requests over a small world, so that they meet.
type random struct{ *rand.Rand }

func newRandom(seed uint64) random { return random{rand.New(rand.NewPCG(seed, 0))} }

func pick[T any](r random, choices ...T) T { return choices[r.IntN(len(choices))] }

func (r random) name() string {
	return pick(r, "a.test", "b.a.test", "c.b.a.test", "x.test", "test", "db", "other.example", "a.example")
}

func (r random) addr() netip.Addr {
	return netip.MustParseAddr(pick(r,
		"203.0.113.1", "203.0.113.2", "203.0.114.1", "10.0.0.1", "127.0.0.1", "0.0.0.0", "169.254.169.254", "100.100.100.200",
		"2001:db8::1", "2001:db8:1::1", "fd00::1", "fe80::1", "::1", "64:ff9b::a9fe:a9fe", "::ffff:203.0.113.1"))
}

func (r random) port() uint16 { return pick[uint16](r, 22, 53, 80, 443) }

// target is the JSON of a legal target; denied says for which list.
func (r random) target(denied bool) any {
	var host string
	isName := r.IntN(2) == 0
	if isName {
		host = pick(r, "", "*.") + r.name()
	} else {
		host = pick(r, "203.0.113.1", "203.0.113.0/24", "203.0.112.0/22", "10.0.0.0/8", "169.254.169.254", "0.0.0.0/0", "0.0.0.0/1",
			"2001:db8::1", "2001:db8::/32", "2001:db8::/48", "::/0", "::ffff:203.0.113.2", "203.0.113.2/32")
	}
	if r.IntN(2) == 0 {
		if r.IntN(2) == 0 {
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			host = fmt.Sprintf("%s:%d", host, r.port())
		}
		return host
	}
	object := map[string]any{"host": host}
	if r.IntN(2) == 0 {
		object["port"] = r.port()
	}
	if r.IntN(2) == 0 {
		object["protocol"] = pick(r, "tcp", "udp", "any")
		if isName && !denied && object["protocol"] != "tcp" {
			object["port"] = r.port()
		}
	}
	if isName && r.IntN(2) == 0 {
		object["private"] = r.IntN(2) == 0
	}
	return object
}

func (r random) targets(n int, denied bool) []any {
	list := []any{}
	for range n {
		list = append(list, r.target(denied))
	}
	return list
}

func (r random) document() string {
	var document any
	switch r.IntN(8) {
	case 0:
		document = pick(r, "public", "no-network")
	case 1, 2:
		document = map[string]any{"network_mode": "denylist", "denied_hosts": r.targets(1+r.IntN(4), true)}
	case 3, 4:
		document = map[string]any{"network_mode": "allowlist", "allowed_hosts": r.targets(r.IntN(5), false)}
	default:
		document = map[string]any{"network_mode": "allowlist", "allowed_hosts": r.targets(r.IntN(6), false), "denied_hosts": r.targets(r.IntN(3), true)}
	}
	b, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (r random) request() Request {
	q := Request{
		Kind:     pick(r, KindAsk, KindPacket, KindConnection, KindQuestion),
		Port:     r.port(),
		Protocol: pick(r, TCP, TCP, UDP, ICMP),
		QType:    pick[uint16](r, 1, 28, 16, 255, 65, 10),
	}
	if r.IntN(3) > 0 {
		q.Name = r.name()
	}
	if q.Name == "" || r.IntN(2) == 0 {
		q.Addr = r.addr().Unmap()
	}
	for range r.IntN(3) {
		q.Attributed = append(q.Attributed, r.name())
	}
	if q.Kind == KindConnection {
		q.Finding = pick(r, FindingNone, FindingNone, FindingNone, FindingMalformed, FindingTimeout, FindingMismatch, FindingNoServerName, FindingECH)
	}
	return q
}

func (r random) floor(t testing.TB) []Target {
	if r.IntN(2) == 0 {
		return nil
	}
	b, err := json.Marshal(map[string]any{"network_mode": "denylist", "denied_hosts": r.targets(1+r.IntN(2), true)})
	if err != nil {
		t.Fatal(err)
	}
	return mustParse(t, string(b)).Denied
}

const propertyRounds = 4000

func TestCompiledDecisionsEqualTheReference(t *testing.T) {
	for seed := range uint64(propertyRounds) {
		r := newRandom(seed)
		text := r.document()
		d, floor := mustParse(t, text), r.floor(t)
		c := Compile(d, Options{Floor: floor, Generation: seed})
		ref := reference{document: d, floor: floor}
		for range 25 {
			q := r.request()
			got, want := c.Decide(q), ref.decide(q)
			want.Generation = seed
			if got != want {
				t.Fatalf("seed %d\n%s floor %v\n%+v\n got %+v\nwant %+v", seed, text, floor, q, got, want)
			}
			name, addr, port, pinned := r.name(), r.addr(), pick(r, 0, r.port()), r.IntN(2) == 0
			protocol := pick(r, TCP, UDP)
			if got, want := c.DecideAddress(name, addr, port, protocol, pinned), ref.decideAddress(name, addr, port, protocol, pinned); got.Verdict != want.Verdict || got.Reason != want.Reason {
				t.Fatalf("seed %d\n%s floor %v\n%s on %s port %d %s pinned %v\n got %+v\nwant %+v", seed, text, floor, name, addr, port, protocol, pinned, got, want)
			}
		}
	}
}

func TestOrderNeverMatters(t *testing.T) {
	for seed := range uint64(propertyRounds / 2) {
		r := newRandom(seed)
		d, floor := mustParse(t, r.document()), r.floor(t)
		shuffled := Document{Mode: d.Mode, Allowed: slices.Clone(d.Allowed), Denied: slices.Clone(d.Denied)}
		shuffle(r, shuffled.Allowed)
		shuffle(r, shuffled.Denied)
		shuffledFloor := slices.Clone(floor)
		shuffle(r, shuffledFloor)
		a, b := Compile(d, Options{Floor: floor}), Compile(shuffled, Options{Floor: shuffledFloor})
		for range 25 {
			q := r.request()
			if got, want := b.Decide(q), a.Decide(q); got != want {
				t.Fatalf("seed %d: %s and %s\n%+v\n%+v\n%+v", seed, mustJSON(t, d), mustJSON(t, shuffled), q, want, got)
			}
			name, addr, port := r.name(), r.addr(), pick(r, 0, r.port())
			if got, want := b.DecideAddress(name, addr, port, TCP, false), a.DecideAddress(name, addr, port, TCP, false); got != want {
				t.Fatalf("seed %d: %s and %s\n%s on %s port %d\n%+v\n%+v", seed, mustJSON(t, d), mustJSON(t, shuffled), name, addr, port, want, got)
			}
		}
	}
}

func shuffle(r random, list []Target) {
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

func TestCanonicalIsAFixedPoint(t *testing.T) {
	for seed := range uint64(propertyRounds) {
		d := mustParse(t, newRandom(seed).document())
		checkFixedPoint(t, d)
	}
}

// checkFixedPoint holds that parse(print(d)) is d and prints the same.
func checkFixedPoint(t *testing.T, d Document) {
	t.Helper()
	printed := mustJSON(t, d)
	again := mustParse(t, printed)
	if !reflect.DeepEqual(again, d) {
		t.Fatalf("%s\nparsed again is %+v\nand was        %+v", printed, again, d)
	}
	if reprinted := mustJSON(t, again); reprinted != printed {
		t.Fatalf("%s\nprints again as\n%s", printed, reprinted)
	}
	for _, target := range append(slices.Clone(d.Allowed), d.Denied...) {
		if target.Proto != ProtocolUnset || target.Private {
			continue // these are objects
		}
		if again := mustTarget(t, target.String()); again != target {
			t.Fatalf("%s parsed again is %+v and was %+v", target, again, target)
		}
	}
}

func TestCanonicalKeepsTheMembersThatWereWritten(t *testing.T) {
	for written, want := range map[string]string{
		`{"host": "a.test"}`:                                      `"a.test"`,
		`{"port": 443, "host": "A.test."}`:                        `"a.test:443"`,
		`{"host": "a.test:443", "protocol": "tcp"}`:               `{"host":"a.test","port":443,"protocol":"tcp"}`,
		`{"host": "a.test", "private": false}`:                    `"a.test"`,
		`{"host": "db", "private": true}`:                         `"db"`,
		`{"host": "*.db", "private": true}`:                       `{"host":"*.db","private":true}`,
		`{"private": true, "port": 1, "host": "a.test"}`:          `{"host":"a.test","port":1,"private":true}`,
		`{"host": "a.test", "private": false, "protocol": "tcp"}`: `{"host":"a.test","protocol":"tcp","private":false}`,
		`{"host": "[2001:DB8::1]", "port": 1, "protocol": "udp"}`: `{"host":"2001:db8::1","port":1,"protocol":"udp"}`,
		`{"host": "2001:db8::/128", "port": 1}`:                   `"[2001:db8::1]:1"`,
		`{"host": "::ffff:203.0.113.0/120", "protocol": "any"}`:   `{"host":"203.0.113.0/24","protocol":"any"}`,
		`{"host": "Straße.example", "port": 1, "private": true}`:  `{"host":"xn--strae-oqa.example","port":1,"private":true}`,
		`"::ffff:0:0/96"`:                                         `"0.0.0.0/0"`,
		`"[2001:db8::1]"`:                                         `"2001:db8::1"`,
		`"203.0.113.10/32"`:                                       `"203.0.113.10"`,
		`"203.0.113.10."`:                                         `"203.0.113.10"`,
	} {
		if strings.Contains(written, "/128") {
			written = strings.Replace(written, "::/128", "::1/128", 1)
		}
		d := mustParse(t, `{"network_mode": "allowlist", "allowed_hosts": [`+written+`]}`)
		if got := mustJSON(t, d.Allowed[0]); got != want {
			t.Errorf("%s is %s, want %s", written, got, want)
		}
		checkFixedPoint(t, d)
	}
}

func TestRuleText(t *testing.T) {
	for written, want := range map[string]string{
		`{"host": "a.test", "port": 1, "protocol": "any", "private": true}`: "a.test:1/any private",
		`{"host": "*.a.test", "private": true}`:                             "*.a.test private",
		`{"host": "2001:db8::/32", "port": 1, "protocol": "udp"}`:           "[2001:db8::/32]:1/udp",
		`{"host": "10.0.0.0/8", "protocol": "tcp"}`:                         "10.0.0.0/8/tcp",
	} {
		d := mustParse(t, `{"network_mode": "allowlist", "allowed_hosts": [`+written+`]}`)
		if got := d.Allowed[0].String(); got != want {
			t.Errorf("%s reads %q, want %q", written, got, want)
		}
	}
}
