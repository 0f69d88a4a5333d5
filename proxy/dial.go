//go:build linux

package proxy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/exeat/exeat/policy"
)

// attemptDelay is how long one address may take before the next is tried beside
// it (RFC 8305 section 5).
const attemptDelay = 250 * time.Millisecond

// maxProxyAnswer bounds the head of an upstream proxy's answer to CONNECT.
const maxProxyAnswer = 16 << 10

// upstream is a connection that was dialled for a verdict.
type upstream struct {
	tcp *net.TCPConn
	// addr is the address dialled; invalid where an upstream proxy resolved it.
	addr netip.Addr
	// early is what it sent and is not yet passed on.
	early []byte
}

// route is how a verdict may be dialled: checked addresses in order of
// preference, then those that further gives, asked only when the first fail.
type route struct {
	addrs []netip.Addr
	// begun is a connection to the first of addrs that has not come about yet, if
	// there is one. It goes with further alone, so that a race has it.
	begun   *net.TCPConn
	further func(context.Context) []netip.Addr
	// host is dialled by an upstream proxy that resolves, in place of addrs.
	host string
	port uint16
}

// route resolves and checks what v may be dialled to. The verdict is v, or a
// denial where every address was refused; the error is one of resolution.
func (p *Proxy) route(ctx context.Context, c *policy.Compiled, v verdict) (route, verdict, error) {
	r := route{port: v.subject.port}
	if v.name != "" && p.cfg.UpstreamResolves {
		r.host = v.name
		return r, v, nil
	}
	if known, ok := p.knownRoute(c, v); ok {
		return known, v, nil
	}
	addrs, refused, err := p.resolve(ctx, c, v)
	if err != nil {
		return r, v, err
	}
	if len(addrs) == 0 {
		return r, v.deny(refused), nil
	}
	r.addrs = addrs
	return r, v, nil
}

// knownRoute is the route of a verdict whose address is known without resolving.
func (p *Proxy) knownRoute(c *policy.Compiled, v verdict) (r route, ok bool) {
	if !p.knows(c, &v) {
		return route{}, false
	}
	r = route{port: v.subject.port, addrs: []netip.Addr{v.direct}}
	if v.name != "" {
		r.further = p.further(c, v)
	}
	return r, true
}

// knows says that the address to dial for v, or to dial first where v has a name,
// is known without resolving.
func (p *Proxy) knows(c *policy.Compiled, v *verdict) bool {
	return v.name == "" || v.direct.IsValid() && p.checkAddress(c, v.name, v.direct, v.subject.port).Verdict == policy.Allow
}

// further asks for the addresses of v's name beside the one that is known.
func (p *Proxy) further(c *policy.Compiled, v verdict) func(context.Context) []netip.Addr {
	return func(ctx context.Context) []netip.Addr {
		// That the name cannot be resolved again is no news: its address failed.
		addrs, _, err := p.resolve(ctx, c, v)
		if err != nil {
			return nil
		}
		return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a == v.direct })
	}
}

// resolve asks for the addresses of v's name and keeps those that may be
// dialled; where none may, refused says why the first may not.
func (p *Proxy) resolve(ctx context.Context, c *policy.Compiled, v verdict) (addrs []netip.Addr, refused policy.Decision, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Limits.DialTimeout)
	defer cancel()
	all, err := p.cfg.Resolve(ctx, v.name, FamilyAny)
	if err != nil {
		return nil, refused, &resolveError{err}
	}
	if len(all) == 0 {
		return nil, refused, &resolveError{errUnresolvable}
	}
	for _, a := range all {
		a = a.Unmap()
		d := p.checkAddress(c, v.name, a, v.subject.port)
		if d.Verdict == policy.Allow {
			addrs = append(addrs, a)
		} else if refused.Reason == "" {
			refused = d
		}
	}
	return interleave(addrs), refused, nil
}

// interleave alternates the families, beginning with the resolver's first (RFC
// 8305 section 4).
func interleave(addrs []netip.Addr) []netip.Addr {
	if len(addrs) < 2 {
		return addrs
	}
	var same, other []netip.Addr
	for _, a := range addrs {
		if a.Is4() == addrs[0].Is4() {
			same = append(same, a)
		} else {
			other = append(other, a)
		}
	}
	out := make([]netip.Addr, 0, len(addrs))
	for i := range max(len(same), len(other)) {
		if i < len(same) {
			out = append(out, same[i])
		}
		if i < len(other) {
			out = append(out, other[i])
		}
	}
	return out
}

// dial connects along r (Happy Eyeballs, RFC 8305).
func (p *Proxy) dial(ctx context.Context, r route) (upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Limits.DialTimeout)
	defer cancel()
	if r.host != "" {
		return p.dialVia(ctx, net.JoinHostPort(r.host, strconv.Itoa(int(r.port))))
	}
	if len(r.addrs) == 1 && r.further == nil {
		return p.dialAddr(ctx, r.addrs[0], r.port)
	}
	return p.race(ctx, r)
}

// errNoAddress says that a name has no address beside those that failed.
var errNoAddress = errors.New("no other address to try")

type attempt struct {
	up  upstream
	err error
}

// race starts one attempt after another until one succeeds; the losers are
// waited for and closed. Without an address it is errNoAddress.
func (p *Proxy) race(ctx context.Context, r route) (upstream, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan attempt)
	running, next := 0, 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	var won upstream
	var errs []error
	start := func() {
		if next == len(r.addrs) && r.further != nil {
			r.addrs = append(r.addrs, r.further(ctx)...)
			r.further = nil
		}
		if next == len(r.addrs) {
			return
		}
		a, begun := r.addrs[next], r.begun
		r.begun = nil
		next++
		running++
		go func() {
			if begun != nil {
				results <- attempt{upstream{tcp: begun, addr: a}, await(ctx, begun)}
				return
			}
			up, err := p.dialAddr(ctx, a, r.port)
			results <- attempt{up, err}
		}()
		timer.Reset(attemptDelay)
	}
	for won.tcp == nil {
		select {
		case <-timer.C:
			start()
		case res := <-results:
			running--
			if res.err == nil {
				won = res.up
				break
			}
			errs = append(errs, res.err)
			start()
		}
		if won.tcp == nil && running == 0 {
			if len(errs) == 0 {
				return upstream{}, errNoAddress
			}
			return upstream{}, errors.Join(errs...)
		}
	}
	cancel()
	for ; running > 0; running-- {
		if res := <-results; res.err == nil {
			reset(res.up.tcp)
		}
	}
	return won, nil
}

// dialAddr connects to one address, through the upstream proxy where there is one.
func (p *Proxy) dialAddr(ctx context.Context, addr netip.Addr, port uint16) (upstream, error) {
	to := netip.AddrPortFrom(addr, port).String()
	if p.cfg.UpstreamProxy != nil {
		up, err := p.dialVia(ctx, to)
		up.addr = addr
		return up, err
	}
	network := "tcp4"
	if addr.Is6() {
		network = "tcp6"
	}
	tcp, err := p.dialTCP(ctx, network, to)
	return upstream{tcp: tcp, addr: addr}, err
}

func (p *Proxy) dialTCP(ctx context.Context, network, address string) (*net.TCPConn, error) {
	conn, err := p.cfg.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("dial %s: %T cannot be spliced", address, conn)
	}
	return tcp, nil
}

// dialVia has the upstream proxy connect to target (RFC 9110 section 9.3.6).
func (p *Proxy) dialVia(ctx context.Context, target string) (upstream, error) {
	u := p.cfg.UpstreamProxy
	port := u.Port()
	if port == "" {
		port = "80"
	}
	tcp, err := p.dialTCP(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return upstream{}, fmt.Errorf("upstream proxy: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { reset(tcp) })
	defer stop()
	var b strings.Builder
	fmt.Fprintf(&b, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n", target, target)
	if u.User != nil {
		password, _ := u.User.Password()
		token := base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password))
		fmt.Fprintf(&b, "Proxy-Authorization: Basic %s\r\n", token)
	}
	b.WriteString("\r\n")
	if _, err := tcp.Write([]byte(b.String())); err != nil {
		reset(tcp)
		return upstream{}, fmt.Errorf("upstream proxy: %w", errors.Join(err, ctx.Err()))
	}
	early, err := readProxyAnswer(tcp)
	if err != nil {
		reset(tcp)
		return upstream{}, fmt.Errorf("upstream proxy: %w", errors.Join(err, ctx.Err()))
	}
	return upstream{tcp: tcp, early: early}, nil
}

// readProxyAnswer reads the answer to a CONNECT and gives what came after it.
func readProxyAnswer(tcp *net.TCPConn) (early []byte, err error) {
	head := make([]byte, 0, 1024)
	for {
		if at := strings.Index(string(head), "\r\n\r\n"); at >= 0 {
			return head[at+4:], proxyAnswered(string(head[:at]))
		}
		if len(head) >= maxProxyAnswer {
			return nil, errors.New("answer to CONNECT too long")
		}
		head = slices.Grow(head, 512)
		n, err := tcp.Read(head[len(head):cap(head)])
		if n == 0 && err != nil {
			return nil, err
		}
		head = head[:len(head)+n]
	}
}

func proxyAnswered(head string) error {
	line, _, _ := strings.Cut(head, "\r\n")
	proto, status, _ := strings.Cut(line, " ")
	if _, _, ok := http.ParseHTTPVersion(proto); !ok {
		return fmt.Errorf("answered %q to CONNECT", line)
	}
	if len(status) < 3 || status[0] != '2' {
		return fmt.Errorf("refused CONNECT: %q", status)
	}
	return nil
}
