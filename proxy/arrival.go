//go:build linux

package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// How long an arrival may take over a step before it is given a goroutine, which
// has all the patience there is: for the client to speak, and for the upstream to
// answer where there may be other addresses.
const (
	arrivalPatience = time.Second
	// arrivalTick is how exactly that is kept.
	arrivalTick = 50 * time.Millisecond
	// arrivalReads is in how many pieces a ClientHello may come.
	arrivalReads = 4
)

// arrival is a tunnel that is not yet a flow: a redirected connection whose client
// is to send a ClientHello, then one that waits for its upstream. It is the same
// path that transparentConn takes, for the connections that are most of all, and
// decides nothing differently; whatever is out of the ordinary (another protocol,
// a denial, a name to resolve, a failure) is left to a goroutine, which reads what
// was read here again. Its worker alone touches it.
type arrival struct {
	tunnel *tunnel
	client *client
	held   *holder
	ctx    context.Context // of the listener that it came in by
	came   time.Time
	// due is when the step is over.
	due   time.Time
	reads int
	// empty: the last read found nothing.
	empty bool
	// opening, what it was judged by and the address dialled are set while the
	// upstream is waited for.
	opening opening
	policy  *policy.Compiled
	dialled netip.Addr
}

// arrive makes an arrival of c; false when there is no worker to be had.
func (d *door) arrive(ctx context.Context, c *client, fd int) bool {
	p := d.p
	w, err := p.cfg.Flows.worker()
	if err != nil {
		return false
	}
	now := time.Now()
	t := &tunnel{}
	t.ends[clientEnd] = end{fd: fd, writable: true}
	t.ends[upstreamEnd] = end{fd: -1}
	a, ok := p.arrivals.Get().(*arrival)
	if !ok {
		a = &arrival{}
	}
	*a = arrival{
		tunnel: t, client: c, held: d.held, ctx: ctx, came: now,
		due: now.Add(min(arrivalPatience, p.cfg.Limits.SniffTimeout/2)),
	}
	t.arrival, t.done = a, a.over
	c.in = a
	c.arriving.Store(t)
	if !d.held.add(c) {
		p.conns.Add(-1)
		resetSocket(fd)
		return true
	}
	t.mu.Lock() // lest it is aborted half way
	err = w.add(t)
	aborted := t.aborted
	t.mu.Unlock()
	switch {
	case err != nil:
		t.refuse(err)
	case aborted != nil:
		w.bar(t)
		p.cfg.Flows.nudge()
	}
	return true
}

// over is the end of an arrival that became no flow.
func (a *arrival) over(error) {
	a.client.forget()
	a.client.p.conns.Add(-1)
	a.held.done(a.client)
}

// Read reads from the client's socket for client.more.
func (a *arrival) Read(b []byte) (int, error) {
	from := &a.tunnel.ends[clientEnd]
	n, errno := readInto(from.fd, b)
	switch {
	case errno == syscall.EAGAIN:
		a.empty, from.readable = true, false
		return 0, errno
	case errno != 0:
		return 0, errno
	case n == 0:
		return 0, io.EOF
	case n < len(b) && !from.hung && !from.urgent:
		from.readable = false
	}
	return n, nil
}

// step goes on with the arrival, and says whether it is a flow now.
func (a *arrival) step() (flow bool) {
	if a.policy != nil {
		return a.answered()
	}
	if a.tunnel.ends[clientEnd].readable {
		a.greeted()
	}
	return false
}

// greeted reads what the client says first.
func (a *arrival) greeted() {
	c := a.client
	a.empty = false
	_, err := c.more()
	switch {
	case err != nil && a.empty:
		return
	case err != nil && len(c.recorded) == 0:
		// It went without a word.
		c.p.leave(c, c.p.cfg.Policy.Load(), upstream{})
		a.tunnel.worker.finish(a.tunnel, nil)
		return
	case err != nil || c.recorded[0] != contentHandshake:
		a.leave(c.p.transparentConn)
		return
	}
	hello, err := c.readHello()
	if a.reads++; err != nil {
		if !a.empty || a.reads == arrivalReads {
			a.leave(c.p.transparentConn)
		}
		return
	}
	p := c.p
	pol := p.cfg.Policy.Load()
	v := p.judge(pol, c.tlsSubject(hello))
	if v.Verdict != policy.Allow {
		a.leave(p.transparentConn)
		return
	}
	if !p.knows(pol, &v) {
		a.leave(p.transparentConn)
		return
	}
	a.opening = opening{verdict: v, id: p.record(v)}
	a.policy, a.dialled = pol, v.direct
	a.dial()
}

// hasFurther says that there may be further addresses.
func (a *arrival) hasFurther() bool { return a.opening.name != "" }

// further is the route to these.
func (a *arrival) further() route {
	o := a.opening
	return route{port: o.subject.port, further: a.client.p.further(a.policy, o.verdict)}
}

// to is where the connection goes that is being made.
func (a *arrival) to() netip.AddrPort { return netip.AddrPortFrom(a.dialled, a.opening.subject.port) }

// dial begins the connection to the upstream.
func (a *arrival) dial() {
	p := a.client.p
	a.due = time.Now().Add(p.cfg.Limits.DialTimeout)
	if a.hasFurther() {
		a.due = time.Now().Add(attemptDelay)
	}
	fd, err := p.cfg.Connect(a.to())
	if err != nil {
		a.failed(err)
		return
	}
	if err := a.tunnel.worker.join(a.tunnel, fd); err != nil {
		a.failed(err)
	}
}

// answered looks at what has become of the connection to the upstream.
func (a *arrival) answered() (flow bool) {
	up := &a.tunnel.ends[upstreamEnd]
	switch {
	case up.failed:
		errno, err := unix.GetsockoptInt(up.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil {
			err = os.NewSyscallError("connect", unix.Errno(errno))
		}
		a.failed(err)
	case up.writable:
		return a.become()
	}
	return false
}

// failed is for an upstream that cannot be reached: where there may be further
// addresses they are tried.
func (a *arrival) failed(err error) {
	p, o := a.client.p, a.opening
	err = &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(a.to()), Err: err}
	if a.hasFurther() {
		r := a.further()
		a.leave(func(ctx context.Context, c *client) { p.reach(ctx, c, o, r, err) })
		return
	}
	p.failed(o.verdict, o.id, err)
	a.tunnel.worker.finish(a.tunnel, err)
}

// late gives an arrival that takes too long a goroutine.
func (a *arrival) late() {
	p, o := a.client.p, a.opening
	switch {
	case a.policy == nil:
		a.leave(p.transparentConn)
	case !a.hasFurther():
		a.failed(os.ErrDeadlineExceeded)
	default:
		fd, ok := a.tunnel.worker.part(a.tunnel, upstreamEnd)
		if !ok {
			return // it was interrupted
		}
		begun, err := connOf(fd)
		if err != nil {
			a.failed(err)
			return
		}
		r := a.further()
		r.addrs, r.begun = []netip.Addr{a.dialled}, begun
		a.leave(func(ctx context.Context, c *client) { p.reach(ctx, c, o, r, nil) })
	}
}

// reach goes on where an arrival left off: along r, after before failed.
func (p *Proxy) reach(ctx context.Context, c *client, o opening, r route, before error) {
	var err error
	o.up, err = p.dial(ctx, r)
	switch {
	case err == nil:
		p.relay(c, o)
	case ctx.Err() == nil:
		p.failed(o.verdict, o.id, errors.Join(before, err))
		fallthrough
	default:
		c.reset()
	}
}

// leave gives the connection to a goroutine that runs handle.
func (a *arrival) leave(handle func(context.Context, *client)) {
	t, c := a.tunnel, a.client
	fd, ok := t.worker.part(t, clientEnd)
	if !ok {
		return // it was interrupted
	}
	t.worker.forget(t)
	c.waited = time.Since(a.came)
	c.next = 0
	if !c.adopt(fd) {
		c.arriving.Store(nil)
		a.over(nil)
		return
	}
	c.arriving.Store(nil)
	if a.held.over() {
		c.reset() // whoever interrupted it may have come too late for the arrival
	}
	c.run(a.ctx, a.held, handle)
}

// become makes a flow of the arrival, and judges it once more, as register does.
func (a *arrival) become() bool {
	t, c, p := a.tunnel, a.client, a.client.p
	o := a.opening
	o.up.addr = a.dialled
	f := p.cfg.Flows.Register(o.flowInfo(c), nil)
	release := p.hold(o)
	t.worker.arrived(t)
	t.flow = f
	t.done = func(err error) {
		p.conns.Add(-1)
		release()
		f.End(err)
	}
	c.arriving.Store(nil)
	a.held.done(c)
	defer c.forget()
	if err := f.have(t); err != nil {
		t.worker.finish(t, err)
		return false
	}
	f.Confirm(p.cfg.Policy.Load()) // where it is revoked the tunnel is aborted, and step does nothing
	t.say(c.recorded)
	*a = arrival{}
	p.arrivals.Put(a) // its worker alone knew it
	return true
}

// say passes on what the client said before there was an upstream.
func (t *tunnel) say(recorded []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.aborted != nil {
		return
	}
	sent := t.send(clientEnd, recorded)
	if rest := recorded[sent:]; len(rest) > 0 && !t.ways[clientEnd].done {
		t.ways[clientEnd].rest = append([]byte(nil), rest...)
		t.worker.held += len(rest)
	}
}

// have gives a flow its tunnel, which a worker moves already; an error when the
// flow was aborted before.
func (f *Flow) have(t *tunnel) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.aborted != nil {
		return f.aborted
	}
	f.tunnel = t
	return nil
}
