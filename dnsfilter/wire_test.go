package dnsfilter_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/policy"
)

// packed is a question for name as bytes.
func packed(t testing.TB, name string, edit func(*dns.Msg)) []byte {
	t.Helper()
	var m dns.Msg
	m.SetQuestion(name, dns.TypeA)
	m.Id = 0x1234
	if edit != nil {
		edit(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMalformedMessagesAreRefusedAndLogged(t *testing.T) {
	header := func(qd, an, ns, ar byte) []byte {
		return []byte{0x12, 0x34, 1, 0, 0, qd, 0, an, 0, ns, 0, ar}
	}
	question := []byte("\x01a\x04test\x00\x00\x01\x00\x01")
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	opt := []byte{0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0}
	cases := map[string]struct {
		msg   []byte
		rcode int
	}{
		"two questions":                   {join(header(2, 0, 0, 0), question, question), dns.RcodeFormatError},
		"no question":                     {header(0, 0, 0, 0), dns.RcodeFormatError},
		"an answer in a question":         {join(header(1, 1, 0, 0), question), dns.RcodeFormatError},
		"bytes after the question":        {join(header(1, 0, 0, 0), question, []byte{0}), dns.RcodeFormatError},
		"bytes after the OPT":             {join(header(1, 0, 0, 1), question, opt, []byte{0}), dns.RcodeFormatError},
		"two OPT records":                 {join(header(1, 0, 0, 2), question, opt, opt), dns.RcodeFormatError},
		"an additional A record":          {join(header(1, 0, 0, 1), question, []byte{0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0}), dns.RcodeFormatError},
		"an option longer than its OPT":   {join(header(1, 0, 0, 1), question, []byte{0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 5, 0, 10, 0, 8, 1}), dns.RcodeFormatError},
		"a dot inside a label":            {join(header(1, 0, 0, 0), []byte("\x06a.test\x00\x00\x01\x00\x01")), dns.RcodeFormatError},
		"a NUL inside a label":            {join(header(1, 0, 0, 0), []byte("\x02a\x00\x04test\x00\x00\x01\x00\x01")), dns.RcodeFormatError},
		"a compression pointer":           {join(header(1, 0, 0, 0), []byte("\x01a\xc0\x0c\x00\x01\x00\x01")), dns.RcodeFormatError},
		"a name cut short":                {join(header(1, 0, 0, 0), []byte("\x05ab")), dns.RcodeFormatError},
		"a question cut short":            {join(header(1, 0, 0, 0), []byte("\x01a\x00\x00\x01")), dns.RcodeFormatError},
		"a name of 256 bytes":             {join(header(1, 0, 0, 0), []byte(strings.Repeat("\x3f"+strings.Repeat("a", 63), 4)+"\x00\x00\x01\x00\x01")), dns.RcodeFormatError},
		"an UPDATE":                       {packed(t, "a.test.", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), dns.RcodeNotImplemented},
		"class CHAOS":                     {packed(t, "version.bind.", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), dns.RcodeRefused},
		"a name that is no host name":     {packed(t, "a b.test.", nil), dns.RcodeNameError},
		"a name that is not ASCII":        {packed(t, "\\195\\188.test.", nil), dns.RcodeNameError},
		"a datagram longer than any need": {join(header(1, 0, 0, 1), question, []byte{0, 0, 41, 4, 208, 0, 0, 0, 0, 15, 160, 0, 12, 15, 156}, make([]byte, 3996)), dns.RcodeFormatError},
	}
	o := newOrigin(t, nil, "a.test. 60 IN A 203.0.113.1")
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := start(t, `"public"`, nil, o)
			before := len(o.questions())
			r := rawExchange(t, f.udp, c.msg)
			if r.Rcode != c.rcode || r.Id != 0x1234 {
				t.Errorf("answered %s, id %x", dns.RcodeToString[r.Rcode], r.Id)
			}
			if e := f.log.last(t); e.Verdict != policy.Deny || e.Reason != policy.ReasonMalformed {
				t.Errorf("logged %s %s", e.Verdict, e.Reason)
			}
			if len(o.questions()) != before {
				t.Error("it was passed on")
			}
		})
	}
}

func rawExchange(t testing.TB, addr string, msg []byte) *dns.Msg {
	t.Helper()
	conn, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(msg); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 65535)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	var r dns.Msg
	if err := r.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	return &r
}

func TestAnUnknownEDNSVersionIsBADVERS(t *testing.T) {
	f := start(t, `"public"`, nil)
	r := rawExchange(t, f.udp, packed(t, "a.test.", func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().SetVersion(1)
	}))
	if r.Rcode != dns.RcodeBadVers {
		t.Errorf("answered %s", dns.RcodeToString[r.Rcode])
	}
}

func TestRepliesAndScrapsAreNotAnswered(t *testing.T) {
	f := start(t, `"no-network"`, nil)
	conn, err := net.Dial("udp", f.udp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, msg := range [][]byte{packed(t, "a.test.", func(m *dns.Msg) { m.Response = true }), {1, 2, 3}, {}} {
		if _, err := conn.Write(msg); err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 512)); err == nil {
		t.Errorf("%d bytes came back", n)
	}
}

// crowd is a name with n addresses.
func crowd(n int) (records []string) {
	for i := range n {
		records = append(records, fmt.Sprintf("crowd.test. 60 IN A 203.0.113.%d", i+1))
	}
	return records
}

func TestManyAddresses(t *testing.T) {
	o := newOrigin(t, nil, crowd(200)...)
	f := start(t, allow("crowd.test"), nil, o)
	var plain dns.Msg
	plain.SetQuestion("crowd.test.", dns.TypeA)
	if r := f.exchange(t, "udp", f.udp, &plain); !r.Truncated || len(r.Answer) != 0 {
		t.Errorf("a client without EDNS got TC %v and %d records in a datagram", r.Truncated, len(r.Answer))
	}
	if r := f.exchange(t, "tcp", f.tcp, &plain); r.Truncated || len(r.Answer) != 200 {
		t.Errorf("over TCP it got %d records", len(r.Answer))
	}
	big := plain.Copy()
	big.SetEdns0(4096, false)
	if r := f.exchange(t, "udp", f.udp, big); r.Truncated || len(r.Answer) != 200 {
		t.Errorf("a client that takes 4096 bytes got TC %v and %d records", r.Truncated, len(r.Answer))
	}
	if got := len(f.names.Names(mustAddr("203.0.113.200"))); got != 1 {
		t.Errorf("the last address is attributed to %d names", got)
	}
}

func TestTCPPipelining(t *testing.T) {
	slow := make(chan struct{})
	o := newOrigin(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if strings.HasPrefix(strings.ToLower(m.Question[0].Name), "slow") {
			<-slow
		}
		zone(t, "slow.test. 60 IN A 203.0.113.1", "fast.test. 60 IN A 203.0.113.2")(w, m)
	})
	f := start(t, allow("slow.test", "fast.test"), nil, o)
	conn, err := net.Dial("tcp", f.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var all []byte
	for i, name := range []string{"slow.test.", "fast.test.", "denied.test."} {
		msg := packed(t, name, func(m *dns.Msg) { m.Id = uint16(i) })
		all = binary.BigEndian.AppendUint16(all, uint16(len(msg)))
		all = append(all, msg...)
	}
	for _, b := range all { // one byte a segment, if the kernel likes
		if _, err := conn.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	var order []uint16
	for i := range 3 {
		if i == 2 {
			close(slow)
		}
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			t.Fatal(err)
		}
		msg := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, msg); err != nil {
			t.Fatal(err)
		}
		order = append(order, binary.BigEndian.Uint16(msg))
	}
	if order[2] != 0 {
		t.Errorf("answers came as %v: the slow one held the others up", order)
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	f := start(t, `"no-network"`, func(c *dnsfilter.Config) { c.IdleTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", f.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
}

func TestConnectionsAreCapped(t *testing.T) {
	f := start(t, `"no-network"`, func(c *dnsfilter.Config) { c.Conns = 2 })
	ended := make(chan int, 3)
	for i := range 3 {
		conn, err := net.Dial("tcp", f.tcp)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i < 2 {
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == io.EOF || strings.Contains(err.Error(), "reset") {
			ended <- i
		}
	}
	if len(ended) != 1 {
		t.Error("the third connection was let stay")
	}
}

func TestDig(t *testing.T) {
	dig := require.Tool(t, "dig")
	o := newOrigin(t, nil, crowd(100)...)
	f := start(t, allow("crowd.test"), nil, o)
	host, port, err := net.SplitHostPort(f.udp)
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		out, err := exec.Command(dig, append([]string{"@" + host, "-p", port, "+time=5", "+tries=1"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("dig %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if out := run("crowd.test", "+bufsize=512"); !strings.Contains(out, "Truncated, retrying in TCP mode") || !strings.Contains(out, "203.0.113.100") {
		t.Errorf("dig did not go over to TCP:\n%s", out)
	}
	if out := run("denied.test"); !strings.Contains(out, "NXDOMAIN") || !strings.Contains(out, "EDE: 15") || !strings.Contains(out, "unlisted") {
		t.Errorf("dig does not show the denial:\n%s", out)
	}
	if out := run("-x", "203.0.113.1"); !strings.Contains(out, "NXDOMAIN") {
		t.Errorf("a reverse name is not denied:\n%s", out)
	}
}

func TestALostSocketEndsServing(t *testing.T) {
	server, err := dnsfilter.New(dnsfilter.Config{
		Policy: new(atomic.Pointer[policy.Compiled]), Log: &recorder{}, Names: attribution.New(time.Hour, nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	pc, ln := listenBoth(t, "127.0.0.1")
	done := make(chan error, 1)
	go func() { done <- server.Serve(t.Context(), []net.PacketConn{pc}, []net.Listener{ln}) }()
	if err := pc.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("Serve ended without an error")
		}
	case <-time.After(30 * time.Second):
		t.Error("Serve goes on without its socket")
	}
	if _, err := server.Lookup(t.Context(), "a.test", dnsfilter.FamilyBoth); err == nil {
		t.Error("Lookup works after the end")
	}
}
