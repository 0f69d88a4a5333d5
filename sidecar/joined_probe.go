//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/probe"
)

// probeMark is on the sockets of probes. It is no secret: the rules judge what
// bears it exactly as the sandbox's, whoever put it there.
const probeMark uint32 = 0x65780003

const (
	discardPort  = 9 // RFC 863
	probeTimeout = 2 * time.Second
	// probeAttempts are how often an allowed flow may fail before that is a breach:
	// a machine that is busy is none.
	probeAttempts = 3
	// settleEvery is how often the end of a swap is looked for.
	settleEvery = 5 * time.Millisecond
)

// flowProbe tries flows that must be refused and flows that must not, from sockets
// that are judged as the sandbox's.
type flowProbe struct {
	policy interface{ Load() *policy.Compiled }
	// settled is Engine.Settled.
	settled func() (number uint64, settled bool)
	// rules says what is configured besides the policy.
	v4, v6             firewall.Ports
	strictDestinations bool
	claims             *claims
}

// probeResult is one flow and what became of it; a nil err is that it behaved.
type probeResult struct {
	id, attempt, want string
	err               error
	// skipped says why it could not be tried.
	skipped string
	// amid: no try was without a swap in its course, so that it says nothing.
	amid bool
}

// errPassed says that what must be refused was not.
var errPassed = errors.New("it was let out")

// run tries every flow that the policy in force says something about.
func (p *flowProbe) run(ctx context.Context) []probeResult {
	results := []probeResult{p.engine()}
	for _, f := range []struct {
		suffix string
		ports  firewall.Ports
		far    netip.Addr
		near   netip.Addr
	}{
		{"4", p.v4, probeAddr4, netip.AddrFrom4([4]byte{127, 0, 0, 53})},
		{"6", p.v6, probeAddr6, netip.IPv6Loopback()},
	} {
		if f.ports.TCP == 0 {
			continue
		}
		results = append(results,
			p.resolver(ctx, "dns"+f.suffix, netip.AddrPortFrom(f.near, 53)),
			p.betweenSwaps(ctx, func() probeResult {
				return p.refused(ctx, "tcp"+f.suffix, policy.TCP, netip.AddrPortFrom(f.far, discardPort))
			}),
			p.betweenSwaps(ctx, func() probeResult {
				return p.refused(ctx, "udp"+f.suffix, policy.UDP, netip.AddrPortFrom(f.far, discardPort))
			}),
			p.betweenSwaps(ctx, func() probeResult {
				return p.proxied(ctx, "web"+f.suffix, netip.AddrPortFrom(f.far, 443))
			}))
	}
	return results
}

// betweenSwaps tries a flow that the policy in force says something about. A swap
// in its course explains whatever is seen: the kernel lets pass what the next policy
// allows while the flow is held against the one before, and ends it under the next.
// Such a try says nothing, and another is made.
func (p *flowProbe) betweenSwaps(ctx context.Context, try func() probeResult) (r probeResult) {
	for late := time.Now().Add(probeTimeout); ; {
		before, settled := p.settled()
		if settled {
			r = try()
			if after, _ := p.settled(); r.err == nil || after == before {
				return r
			}
		}
		if time.Now().After(late) || !wait(ctx, settleEvery) {
			r.err, r.skipped, r.amid = nil, "the policy was swapped meanwhile", true
			return r
		}
	}
}

// engine sends to the engine's DNS, which the rules refuse the sandbox under
// every policy (bypass.md B16).
func (p *flowProbe) engine() probeResult {
	r := probeResult{id: "engine", attempt: "UDP to 127.0.0.11", want: "refused"}
	r.err = p.sendRefused(netip.AddrPortFrom(engineDNS.Addr(), discardPort))
	return r
}

// refused tries a flow that the policy denies.
func (p *flowProbe) refused(ctx context.Context, id string, protocol policy.Protocol, to netip.AddrPort) probeResult {
	r := probeResult{id: id, attempt: fmt.Sprintf("%s to %s", protocol, to), want: "refused"}
	c := p.policy.Load()
	if c == nil {
		r.skipped = "no policy is in force"
		return r
	}
	request := policy.Request{Kind: policy.KindPacket, Addr: to.Addr(), Port: to.Port(), Protocol: protocol}
	if c.Decide(request).Verdict == policy.Allow {
		r.skipped = "the policy allows it"
		return r
	}
	if protocol == policy.UDP {
		r.err = p.sendRefused(to)
	} else {
		r.err = p.connectRefused(ctx, to)
	}
	if noRoute(r.err) {
		r.skipped, r.err = "there is no route", nil
	}
	return r
}

// proxied opens a connection that the rules bring to the proxy.
func (p *flowProbe) proxied(ctx context.Context, id string, to netip.AddrPort) probeResult {
	r := probeResult{id: id, attempt: "TCP to " + to.String(), want: "taken by the proxy"}
	c := p.policy.Load()
	if c == nil || p.strictDestinations {
		r.skipped = "web ports are not read"
		return r
	}
	mode := c.Document().Mode
	request := policy.Request{Kind: policy.KindPacket, Addr: to.Addr(), Port: to.Port(), Protocol: policy.TCP}
	if mode != policy.ModeAllowlist && mode != policy.ModeNoNetwork || c.Decide(request).Verdict == policy.Allow ||
		c.Decide(request).Reason == policy.ReasonDenied {
		r.skipped = "the policy does not bring it to the proxy"
		return r
	}
	conn, err := p.dialer(to.Addr()).DialContext(ctx, "tcp", to.String())
	if err == nil {
		err = conn.Close()
	}
	if r.err = err; noRoute(err) {
		r.skipped, r.err = "there is no route", nil
	}
	return r
}

// resolver asks a resolver on loopback that does not exist: ours must answer.
func (p *flowProbe) resolver(ctx context.Context, id string, to netip.AddrPort) probeResult {
	r := probeResult{id: id, attempt: "DNS to " + to.String(), want: "answered by our resolver"}
	question := new(dns.Msg).SetQuestion(dns.Fqdn(probeName), dns.TypeA)
	client := &dns.Client{Dialer: p.dialer(to.Addr()), Timeout: probeTimeout}
	_, _, err := client.ExchangeContext(ctx, question, to.String())
	r.err = err
	return r
}

// probeDialer makes sockets that are judged as the sandbox's.
func (p *flowProbe) dialer(to netip.Addr) *net.Dialer {
	d := &net.Dialer{Timeout: probeTimeout, Control: func(network, _ string, c syscall.RawConn) error {
		var inner error
		err := c.Control(func(fd uintptr) {
			inner = p.prepare(int(fd), network, to)
		})
		return errors.Join(err, inner)
	}}
	d.SetMultipathTCP(false)
	return d
}

// prepare marks a socket and claims it.
func (p *flowProbe) prepare(fd int, network string, to netip.Addr) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(probeMark)); err != nil {
		return os.NewSyscallError("setsockopt(SO_MARK)", err)
	}
	s := probe.Socket{FD: fd, To: to, IPv6: to.Is6(), Protocol: policy.UDP}
	if strings.HasPrefix(network, "tcp") {
		s.Protocol = policy.TCP
	}
	return p.claims.claim(s)
}

// sendRefused sends a datagram, which the rules must refuse while it is sent.
func (p *flowProbe) sendRefused(to netip.AddrPort) error {
	conn, err := p.dialer(to.Addr()).Dial("udp", to.String())
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("exeat probe"))
	if closeErr := conn.Close(); closeErr != nil {
		return closeErr
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return nil
	case err == nil:
		return errPassed
	}
	return err
}

// connectRefused opens a connection, which the rules must reset.
func (p *flowProbe) connectRefused(ctx context.Context, to netip.AddrPort) error {
	conn, err := p.dialer(to.Addr()).DialContext(ctx, "tcp", to.String())
	switch {
	case err == nil:
		return errors.Join(errPassed, conn.Close())
	case errors.Is(err, unix.ECONNREFUSED):
		return nil
	}
	return err
}

func noRoute(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// verdict sums results up; nil is that everything behaved.
func verdict(results []probeResult) error {
	var errs []error
	for _, r := range results {
		if r.err != nil {
			errs = append(errs, fmt.Errorf("%s must be %s: %w", r.attempt, r.want, r.err))
		}
	}
	return errors.Join(errs...)
}

// passed says that something was let out: no busy machine explains that.
func passed(results []probeResult) bool {
	for _, r := range results {
		if errors.Is(r.err, errPassed) {
			return true
		}
	}
	return false
}

// anyAmid says that a flow was not tried without a swap in its course.
func anyAmid(results []probeResult) bool {
	return slices.ContainsFunc(results, func(r probeResult) bool { return r.amid })
}

// oneLine makes one line of a joined error.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
