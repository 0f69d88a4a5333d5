package firewall

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/policy"
)

// ask sends a datagram from our own socket and waits for the answer.
func ask(t testing.TB, local, address, text string, mark int) (string, error) {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			if mark != 0 {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark)
			}
		}), err)
	}}
	if local != "" {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(local))
	}
	c, err := d.DialContext(context.Background(), "udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

func TestOurOwnTrafficGetsOutAndAProbeOfOursIsJudgedAsTheAgents(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	l.enforce(fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s"]}`, allowed4))
	probe := int(l.in.ProbeMark)
	for _, c := range []struct {
		why, address string
		mark         int
		want         error
	}{
		{"ours to anywhere", denied4 + ":8443", 0, nil},
		{"ours by IPv6", "[" + denied6 + "]:8443", 0, nil},
		{"a probe of what is allowed", allowed4 + ":8443", probe, nil},
		{"a probe of what is denied", denied4 + ":8443", probe, syscall.EPERM},
		{"a probe of what is denied by IPv6", "[" + denied6 + "]:8443", probe, syscall.EPERM},
	} {
		if _, err := ask(t, "", c.address, "hello", c.mark); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.why, err, c.want)
		}
	}
	if got, err := ask(t, "", denied4+":53", "question", probe); got != "answer" {
		t.Errorf("a probe's DNS question: %q, %v; want our resolver's answer", got, err)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(denied4, "22"))
	if err != nil {
		t.Fatalf("our TCP: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.fw.SwapPolicy(compiled(t, `"no-network"`), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, "", denied4+":8443", "hello", 0); !errors.Is(err, syscall.EPERM) {
		t.Errorf("ours under no-network: %v, want EPERM", err)
	}
	if err := l.fw.Reconfigure(func(in *JoinedInput) { in.Policy, in.Lockdown = compiled(t, `"public"`), true }); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, "", allowed4+":8443", "hello", 0); !errors.Is(err, syscall.EPERM) {
		t.Errorf("ours under lockdown: %v, want EPERM", err)
	}
	if out := l.agent("send", allowed4+":8443", "locked-down"); !strings.Contains(out, "not permitted") {
		t.Errorf("the agent under lockdown in public mode: %s", out)
	}
}

func TestAnAddressThatTheResolverHandsOutIsOpenBeforeTheAnswer(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	l.enforce(`{"network_mode":"allowlist","allowed_hosts":["example.com:8443",{"host":"udp.example.com","port":9999,"protocol":"udp"}]}`)
	address := net.JoinHostPort(allowed4, "8443")
	if out := l.agent("connect", address, "early"); !strings.Contains(out, "refused") {
		t.Errorf("before: %s", out)
	}
	for name, addrs := range map[string][]string{"example.com": {allowed4, allowed6}, "udp.example.com": {denied4}, "other.test": {denied6}} {
		var list []netip.Addr
		for _, a := range addrs {
			list = append(list, netip.MustParseAddr(a))
		}
		if err := l.fw.AddAttributed(name, list, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range []string{address, net.JoinHostPort(allowed6, "8443")} {
		marker := "late-" + fileName(a)
		if out := l.agent("connect", a, marker); out != "done" || !l.wasRedirected(marker) {
			t.Errorf("after: %s: %s, redirected %v", a, out, l.wasRedirected(marker))
		}
	}
	l.agent("send", net.JoinHostPort(denied4, "9999"), "udp-by-name")
	if l.arrived("udp-by-name") == 0 {
		t.Error("UDP to an address of a name with udp did not get out")
	}
	if out := l.agent("connect", net.JoinHostPort(denied6, "8443"), "x"); !strings.Contains(out, "refused") {
		t.Errorf("an address of a name that is not allowed: %s", out)
	}
	if _, err := l.fw.SwapPolicy(compiled(t, `{"network_mode":"allowlist","allowed_hosts":["example.org:8443"]}`), nil); err != nil {
		t.Fatal(err)
	}
	if out := l.agent("connect", address, "gone"); !strings.Contains(out, "refused") {
		t.Errorf("after a swap: %s", out)
	}
}

func TestOnlyOpenedPortsCanBeReachedFromOutside(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	l.enforce(`"no-network"`, func(in *JoinedInput) { in.Inbound = []policy.Opening{{Port: 8080}, {Port: 8082, Protocol: policy.UDP}} })
	server := l.agentCommand("serve", "8080", "8081", "8082")
	in, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	dial := func(port string) error {
		return inNamespace(l.far, func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(sandboxV4, port), 300*time.Millisecond)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			buf := make([]byte, 16)
			_, err = c.Read(buf)
			return err
		})
	}
	waitFor(t, func() bool { return dial("8080") == nil })
	if err := dial("8081"); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("a port that was not opened: %v, want no answer", err)
	}
	// Nor may it be heard what was said to one (B31).
	heard := bufio.NewReader(out)
	for range 3 {
		for _, port := range []string{"8081", "8082"} {
			if err := inNamespace(l.far, func() error { return agentSendFrom([]string{"0.0.0.0:0", net.JoinHostPort(sandboxV4, port), "knock"}) }); err != nil {
				t.Fatal(err)
			}
		}
		if line, err := heard.ReadString('\n'); line != "heard 8082\n" {
			t.Errorf("the sandbox said %q, %v; want it to hear port 8082 alone", line, err)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Fatal(err)
	}
}

// agentServe greets on TCP ports until its input ends, and prints where it hears
// a datagram.
func agentServe(ports []string) error {
	for _, p := range ports {
		pc, err := net.ListenPacket("udp", ":"+p)
		if err != nil {
			return err
		}
		go func() {
			for {
				if _, _, err := pc.ReadFrom(make([]byte, 64)); err != nil {
					return
				}
				fmt.Println("heard", p)
			}
		}()
		ln, err := net.Listen("tcp", ":"+p)
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				_, err = c.Write([]byte("hello"))
				if errors.Join(err, c.Close()) != nil {
					return
				}
			}
		}()
	}
	buf := make([]byte, 1)
	_, err := stdin().Read(buf)
	if err != nil && err.Error() == "EOF" {
		return nil
	}
	return err
}

// agentEngine plays the engine's DNS: it answers at a high port of 127.0.0.11.
func agentEngine(args []string) error {
	pc, err := net.ListenPacket("udp", args[0])
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 512)
		for {
			_, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if _, err := pc.WriteTo([]byte("engine"), from); err != nil {
				return
			}
		}
	}()
	return agentServe(nil)
}

func TestTheEnginesDNSAnswersUsAndNobodyElse(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	// As Docker sets it up.
	sh(t, `nft -f - <<EOF
table ip docker {
  chain output { type nat hook output priority -100; ip daddr 127.0.0.11 udp dport 53 dnat to 127.0.0.11:33053; }
  chain postrouting { type nat hook postrouting priority 100; ip saddr 127.0.0.11 udp sport 33053 snat to :53; }
}
EOF`)
	engine := l.agentCommand("engine", "127.0.0.11:33053")
	in, err := engine.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	l.enforce(fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s"]}`, allowed4), func(in *JoinedInput) {
		in.EngineDNS, in.NetRaw = true, false
		in.EngineUpstreams = []netip.Addr{netip.MustParseAddr(denied4)}
	})
	waitFor(t, func() bool {
		got, err := ask(t, "", "127.0.0.11:53", "single-label", 0)
		return err == nil && got == "engine"
	})
	for _, c := range []struct{ why, address, want string }{
		{"the agent asks 127.0.0.11 and is answered by us", "127.0.0.11:53", "done"},
		{"the engine's high port is shut to the agent (B16)", "127.0.0.11:33053", "operation not permitted"},
		{"the engine's question to its upstream is refused, not turned in a circle (B48)", denied4 + ":53", "operation not permitted"},
		{"any other resolver is us", allowed4 + ":53", "done"},
	} {
		if got, _ := parseOutcome(t, l.agent("send", c.address, "q-"+fileName(c.why))); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
		if l.arrived("q-"+fileName(c.why)) > 0 {
			t.Errorf("%s: it got out", c.why)
		}
	}
	// B43: the agent prepares a flow from the port that we use next.
	if out := l.agent("sendfrom", "127.0.0.1:45045", "127.0.0.11:53", "prepared"); out != "done" {
		t.Fatal(out)
	}
	if got, err := ask(t, "127.0.0.1:45045", "127.0.0.11:53", "single-label", 0); got == "answer" {
		t.Errorf("our question followed the agent's flow: %q, %v", got, err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := engine.Wait(); err != nil {
		t.Fatal(err)
	}
}

// agentSendFrom is agentSend from a chosen local address, without waiting.
func agentSendFrom(args []string) error {
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(args[0]))}
	c, err := d.Dial("udp", args[1])
	if err != nil {
		return err
	}
	_, err = c.Write([]byte(args[2]))
	return errors.Join(err, c.Close())
}

func TestUDPIsShutOnAddressesOfDeniedNamesAlone(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	l.enforce(`{"network_mode":"denylist","denied_hosts":["bad.example.com:8443"]}`)
	send := func() string {
		word, _ := parseOutcome(t, l.agent("send", net.JoinHostPort(allowed4, "8443"), "x"))
		return word
	}
	hand := func(name string) {
		t.Helper()
		if err := l.fw.AddAttributed(name, []netip.Addr{netip.MustParseAddr(allowed4)}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if got := send(); got != "done" {
		t.Errorf("before any name was asked for: %s", got)
	}
	hand("bad.example.com")
	if got := send(); got != "operation not permitted" {
		t.Errorf("an address of a denied name alone: %s", got)
	}
	if got, _ := parseOutcome(t, l.agent("send", net.JoinHostPort(allowed4, "443"), "x")); got != "operation not permitted" {
		t.Errorf("QUIC while a name is denied: %s", got)
	}
	hand("good.example.com")
	if got := send(); got != "done" {
		t.Errorf("an address of another name too: %s", got)
	}
	entry := attribution.Entry{Name: "bad.example.com", Addr: netip.MustParseAddr(allowed4), Expires: time.Now().Add(time.Hour)}
	c := compiled(t, `{"network_mode":"denylist","denied_hosts":["bad.example.com:8443","worse.example.com"]}`)
	if _, err := l.fw.SwapPolicy(c, func(yield func(attribution.Entry) bool) { yield(entry) }); err != nil {
		t.Fatal(err)
	}
	if got := send(); got != "operation not permitted" {
		t.Errorf("after a swap that knows the denied name alone: %s", got)
	}
}
