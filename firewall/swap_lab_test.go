package firewall

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/attribution"
	"github.com/exeat/exeat/policy"
)

// agentFlood sends to an address that every policy allows and to one that none
// does until its input ends. It prints how often the first failed and the
// second did not.
func agentFlood(args []string) error {
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(io.Discard, stdin())
	}()
	allowed, err := net.Dial("udp", args[0])
	if err != nil {
		return err
	}
	forbidden, err := net.Dial("udp", args[1])
	if err != nil {
		return err
	}
	var sent, refused, leaked int
	for {
		select {
		case <-end:
			fmt.Printf("sent %d refused %d leaked %d\n", sent, refused, leaked)
			return nil
		default:
		}
		sent++
		if _, err := allowed.Write([]byte("wanted")); err != nil && !strings.Contains(err.Error(), "connection refused") {
			refused++
		}
		if _, err := forbidden.Write([]byte("FORBIDDEN")); err == nil {
			leaked++
		}
	}
}

func swapPolicies(t testing.TB, n int) [2]*policy.Compiled {
	var extra [2]strings.Builder
	for i := range n {
		fmt.Fprintf(&extra[0], `,"192.0.%d.%d:%d"`, i>>8, i&0xff, 443)
		fmt.Fprintf(&extra[1], `,"10.%d.%d.0/24"`, i>>8, i&0xff)
	}
	form := `{"network_mode":"allowlist","allowed_hosts":["%s:8443"%s]}`
	return [2]*policy.Compiled{
		compiled(t, fmt.Sprintf(form, allowed4, extra[0].String())),
		compiled(t, fmt.Sprintf(form, allowed4, extra[1].String())),
	}
}

func TestNoPacketIsMisjudgedWhileThePolicyIsSwapped(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	flood := l.agentCommand("flood", net.JoinHostPort(allowed4, "9999"), net.JoinHostPort(denied4, "9999"))
	policies := swapPolicies(t, 300)
	// The form of the policies names port 8443; the flood needs another, which
	// nobody answers.
	l.enforce(fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s"]}`, allowed4))
	for i := range policies {
		d := policies[i].Document()
		d.Allowed[0].Port = 0
		policies[i] = policy.Compile(d, policy.Options{Generation: uint64(i + 2)})
	}
	in, err := flood.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := flood.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := flood.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range 120 {
		c := policies[i%2]
		if i%3 == 2 {
			c = compiled(t, fmt.Sprintf(`{"network_mode":"denylist","denied_hosts":["%s"]}`, denied4))
		}
		if _, err := l.fw.SwapPolicy(c, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := flood.Wait(); err != nil {
		t.Fatal(err)
	}
	var sent, refused, leaked int
	if _, err := fmt.Sscanf(line, "sent %d refused %d leaked %d", &sent, &refused, &leaked); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	t.Log(strings.TrimSpace(line))
	if sent < 1000 || refused != 0 || leaked != 0 {
		t.Errorf("%s: want thousands sent, none refused, none leaked", line)
	}
	if n := l.arrived("FORBIDDEN"); n != 0 {
		t.Errorf("%d forbidden packets arrived", n)
	}
}

func TestASwapEndsDirectFlowsThatItForbidsAndNoOthers(t *testing.T) {
	if !grouped(t) {
		return
	}
	l := newLab(t)
	l.enforce(`"public"`)
	keep, cut := netip.MustParseAddr(allowed4), netip.MustParseAddr(denied4)
	type open struct {
		name, network, address string
		survives               bool
	}
	flows := []open{
		{"TCP to what stays", "tcp", net.JoinHostPort(keep.String(), "22"), true},
		{"TCP to what goes", "tcp", net.JoinHostPort(cut.String(), "22"), false},
		{"IPv6 TCP to what goes", "tcp", net.JoinHostPort(denied6, "22"), false},
		{"UDP to what stays", "udp", net.JoinHostPort(keep.String(), "8443"), true},
		{"UDP to what goes", "udp", net.JoinHostPort(cut.String(), "8443"), false},
		{"IPv6 UDP to what goes", "udp", net.JoinHostPort(denied6, "8443"), false},
		{"UDP to an address that a name with udp opens", "udp", net.JoinHostPort(allowed6, "8443"), true},
	}
	talks := make([]*talk, len(flows))
	for i, f := range flows {
		talks[i] = l.talk(f.network, f.address)
		if got := talks[i].say("before"); got != "before" {
			t.Fatalf("%s: %q before the swap", f.name, got)
		}
	}
	names := func(yield func(attribution.Entry) bool) {
		yield(attribution.Entry{Name: "quic.example.com", Addr: netip.MustParseAddr(allowed6), Expires: time.Now().Add(time.Hour)})
	}
	c := compiled(t, fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s",{"host":"quic.example.com","port":8443,"protocol":"udp"}]}`, keep))
	swap, err := l.fw.SwapPolicy(c, names)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("rules in force after %v, flows ended after another %v", swap.Took, swap.Cut)
	if len(swap.Revoked) != 4 {
		t.Errorf("revoked %v, want 4", swap.Revoked)
	}
	for i, f := range flows {
		t.Run(f.name, func(t *testing.T) {
			marker := "after-" + fileName(f.name)
			got := talks[i].say(marker)
			if (got == marker) != f.survives {
				t.Errorf("after the swap: %q, survives should be %v", got, f.survives)
			}
			if n := l.arrived(marker); (n > 0) != f.survives {
				t.Errorf("%d packets arrived", n)
			}
		})
	}
}

// talk is an open flow of the agent, told line by line what to send.
type talk struct {
	in  io.Writer
	out *bufio.Reader
}

func (l *lab) talk(network, address string) *talk {
	l.t.Helper()
	cmd := l.agentCommand("talk", network, address)
	in, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := in.Close(); err != nil {
			l.t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			l.t.Error(err)
		}
	})
	return &talk{in, bufio.NewReader(out)}
}

// say sends a line and returns the echo, or the error.
func (t *talk) say(s string) string {
	if _, err := fmt.Fprintln(t.in, s); err != nil {
		return err.Error()
	}
	line, err := t.out.ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

// agentTalk holds one flow open and sends each line of its input on it.
func agentTalk(args []string) error {
	var d net.Dialer
	c, err := d.DialContext(context.Background(), args[0], args[1])
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(stdin())
	buf := make([]byte, 4096)
	for lines.Scan() {
		if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := c.Write(lines.Bytes()); err != nil {
			fmt.Println(err)
			continue
		}
		n, err := c.Read(buf)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(string(buf[:n]))
	}
	return lines.Err()
}
