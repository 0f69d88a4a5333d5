package probe

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/policy"
)

// namespaceCases attack what the enforcement keeps in the shared namespace.
func namespaceCases() []Case {
	return []Case{
		{ID: "B16", Attack: "the engine's DNS on its high port", Expected: "not to be reached by the agent", try: engineHighPort},
		{ID: "B21", Attack: "a new link", Expected: "not without NET_ADMIN", Own: OwnCapabilities, try: newLink},
		{ID: "B34", Attack: "memory, environment and descriptors of the enforcement's processes", Expected: "none is visible, or all are shut", Own: OwnProcesses, try: robProcesses},
		{ID: "B35", Attack: "a listener's port, taken with SO_REUSEPORT", Expected: "in use", try: stealPorts},
		{ID: "B36", Attack: "an abstract Unix socket of the enforcement", Expected: "there is none", try: abstractSockets},
		{ID: "B37", Attack: "a listener dialled directly", Expected: "reset, or denied by exeat", try: dialListeners},
		{ID: "B38", Attack: "secrets in the marks that /proc shows", Expected: "no mark, or no way to read them", try: readMarks},
		{ID: "B43", Attack: "127.0.0.11:53 bound, to answer our resolver", Expected: "what is sent from it is refused", Own: OwnCapabilities, try: bindEngineDNS},
		{ID: "B44", Attack: "a capability that undoes everything", Expected: "the sandbox has none", Own: OwnCapabilities, try: capabilities},
		{ID: "B46", Attack: "resolv.conf and hosts rewritten", Expected: "read-only, or the denial stands", Disturbs: true, Own: OwnFiles, try: rewriteResolver},
		{ID: "B47", Attack: "rules of its own, or the table flushed", Expected: "not without NET_ADMIN", Own: OwnCapabilities, try: ownRules},
	}
}

// engineHighPort asks what listens on 127.0.0.11, which the namespace shows.
func engineHighPort(a *attempt) sight {
	var seen []string
	for _, s := range inetSockets("udp") {
		if s.local.Addr() != engineDNS {
			continue
		}
		q := question("udp", netip.AddrPortFrom(engineDNS, s.local.Port()), a.Name)
		answer := a.ask(q)
		if answer.reply != nil {
			return leak("127.0.0.11:%d answers: %s", s.local.Port(), answer)
		}
		seen = append(seen, fmt.Sprintf("port %d: %s", s.local.Port(), answer))
	}
	if len(seen) == 0 {
		return held("no engine's DNS listens in this namespace")
	}
	return held("%s", strings.Join(seen, ", "))
}

// netlinkCall sends a request and gives the error that the kernel answers.
func (a *attempt) netlinkCall(family int, request []byte) error {
	return a.withSocket(unix.AF_NETLINK, unix.SOCK_RAW, family, func(fd int) error {
		if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return os.NewSyscallError("sendto", err)
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
			return os.NewSyscallError("setsockopt(SO_RCVTIMEO)", err)
		}
		b := make([]byte, 4096)
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		return netlinkError(b[:n])
	})
}

// newLink asks for a dummy link that is called as no other; were it made, it is
// taken away again.
func newLink(a *attempt) sight {
	const name = "exeatprobe0"
	err := a.netlinkCall(unix.NETLINK_ROUTE, linkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, name))
	if err == nil {
		err := a.netlinkCall(unix.NETLINK_ROUTE, linkRequest(unix.RTM_DELLINK, 0, name))
		return leak("a link was made (and removed: %v)", err == nil)
	}
	return a.sent(err)
}

// ownRules asks for a table; were it made, it is taken away again.
func ownRules(a *attempt) sight {
	err := a.netlinkCall(unix.NETLINK_NETFILTER, tableRequest(unix.NFT_MSG_NEWTABLE))
	if err == nil {
		err := a.netlinkCall(unix.NETLINK_NETFILTER, tableRequest(unix.NFT_MSG_DELTABLE))
		return leak("a table was made (and removed: %v)", err == nil)
	}
	return a.sent(err)
}

// undoing are the capabilities that no agent may have.
var undoing = map[uint]string{
	unix.CAP_NET_ADMIN: "NET_ADMIN", unix.CAP_SYS_ADMIN: "SYS_ADMIN", unix.CAP_SYS_PTRACE: "SYS_PTRACE",
	unix.CAP_SYS_MODULE: "SYS_MODULE", unix.CAP_BPF: "BPF", unix.CAP_SYS_RAWIO: "SYS_RAWIO",
}

func capabilities(*attempt) sight {
	var has []string
	for _, field := range []string{"CapEff:", "CapPrm:", "CapBnd:"} {
		var set uint64
		if _, err := fmt.Sscanf(statusField(field), "%x", &set); err != nil {
			return unproven("no "+field+" in /proc/self/status", "the capabilities cannot be read")
		}
		for c, name := range undoing {
			if set&(1<<c) != 0 {
				has = append(has, strings.TrimSuffix(field, ":")+" "+name)
			}
		}
	}
	if len(has) > 0 {
		return leak("the sandbox has %s", strings.Join(has, ", "))
	}
	return held("effective %s", statusField("CapEff:"))
}

// foreignListeners are the loopback listeners of this namespace that no process
// holds whom we can see: the enforcement's.
func (a *attempt) foreignListeners() []inetSocket {
	if a.beside != nil {
		var known []inetSocket
		for _, l := range a.beside.Listeners {
			known = append(known, inetSocket{local: l})
		}
		return known
	}
	seen := map[string]bool{}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil
	}
	for _, link := range links {
		to, err := os.Readlink(link)
		if inode, ok := strings.CutPrefix(to, "socket:["); ok && err == nil {
			seen[strings.TrimSuffix(inode, "]")] = true
		}
	}
	var found []inetSocket
	for _, s := range inetSockets("tcp", "tcp6") {
		if s.state == tcpListen && s.local.Addr().IsLoopback() && !seen[s.inode] && len(found) < 32 {
			found = append(found, s)
		}
	}
	return found
}

const noListener = "no listener of another's on the loopback"

// stealPorts binds the very address of each listener.
func stealPorts(a *attempt) sight {
	listeners := a.foreignListeners()
	for _, l := range listeners {
		family := unix.AF_INET
		if l.local.Addr().Is6() {
			family = unix.AF_INET6
		}
		err := a.withSocket(family, unix.SOCK_STREAM, 0, func(fd int) error {
			for _, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
				if err := setOption(fd, unix.SOL_SOCKET, option, 1, "SO_REUSE"); err != nil {
					return err
				}
			}
			if err := unix.Bind(fd, sockaddr(l.local)); err != nil {
				return os.NewSyscallError("bind", err)
			}
			return os.NewSyscallError("listen", unix.Listen(fd, 1))
		})
		if err == nil {
			return leak("%s was taken", l.local)
		}
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES) {
			return unproven(err.Error(), "the port was not refused because it is in use")
		}
	}
	if len(listeners) == 0 {
		return unproven(noListener, "there is no port to take")
	}
	return held("%d listeners: in use", len(listeners))
}

// dialListeners asks each to connect to the denied address.
func dialListeners(a *attempt) sight {
	listeners := a.foreignListeners()
	var seen []string
	for _, l := range listeners {
		s := a.tunnel(l.local)
		if s.verdict != Held {
			return s
		}
		seen = append(seen, s.seen)
	}
	if len(seen) == 0 {
		return unproven(noListener, "there is nothing to dial")
	}
	return held("%d listeners: %s", len(seen), seen[0])
}

// tunnel asks a proxy for one to the denied address, and shows a denied name in
// it: that the address is taken decides nothing yet.
func (a *attempt) tunnel(proxy netip.AddrPort) sight {
	if err := a.towards(netip.AddrPortFrom(a.IPv4, 443), policy.TCP); err != nil {
		return a.sent(err)
	}
	c, s := a.connect(proxy)
	if c == nil {
		if strings.Contains(s.seen, unix.ECONNRESET.Error()) {
			return held("reset") // by whoever listens here: the connection is on loopback
		}
		return s
	}
	c.inside = true
	defer c.end()
	if _, err := fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n", a.IPv4, a.IPv4); err != nil {
		return c.silent(err)
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	switch said := string(b[:n]); {
	case err != nil:
		return c.silent(err)
	case !strings.HasPrefix(said, "HTTP/1.1 2"):
		if s := c.judge(b[:n], 0); s.verdict == Held {
			return s
		}
		return held("no tunnel: %.40q", said) // the resolver's port does not speak HTTP
	}
	if _, err := c.Write(helloParts{name: []byte(a.Name)}.clientHello(a.marker)); err != nil {
		return c.silent(err)
	}
	return c.hear(21)
}

// abstractSockets looks for one that is named as ours.
func abstractSockets(*attempt) sight {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return held("/proc/net/unix: %v", err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		_, name, abstract := strings.Cut(line, " @")
		if !abstract {
			continue
		}
		n++
		if strings.Contains(name, "exeat") {
			return leak("@%s", strings.TrimSpace(name))
		}
	}
	return held("%d abstract sockets in this namespace, none of ours", n)
}

// publicMarks are the connection marks that say nothing: flows of ours, and
// direct ones (package firewall).
var publicMarks = map[string]bool{"mark=0": true, "mark=1702363137": true, "mark=1702363138": true}

func readMarks(*attempt) sight {
	f, err := os.Open("/proc/net/nf_conntrack")
	if err != nil {
		return held("%v", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err := errors.Join(err, f.Close()); err != nil {
		return unproven(err.Error(), "the table was not read whole")
	}
	n := 0
	for field := range strings.FieldsSeq(string(data)) {
		if !strings.HasPrefix(field, "mark=") {
			continue
		}
		n++
		if !publicMarks[field] {
			return leak("a flow bears %s", field)
		}
	}
	return held("%d flows, no secret in their marks", n)
}

// bindEngineDNS takes the port that the engine's answers come from, and sends
// from it to where our resolver could be waiting.
func bindEngineDNS(a *attempt) sight {
	if a.link == nil {
		return held("there is no link but lo: nothing is asked from this namespace")
	}
	return a.sent(a.withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(engineDNS, 53))); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return sendTo(fd, []byte(a.marker), netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 40000))
	}))
}

// rewriteResolver puts a name server and an address of the attacker's choice into
// the files that programs share, asks, and puts back what was there. Only files
// that are mounted for the sandbox are touched: any other is the host's own.
func rewriteResolver(a *attempt) sight {
	files := map[string]string{
		"/etc/resolv.conf": fmt.Sprintf("nameserver %s\n", a.IPv4),
		"/etc/hosts":       fmt.Sprintf("%s %s\n", a.IPv4, a.Name),
	}
	mounted := mountPoints()
	maps.DeleteFunc(files, func(path, _ string) bool { return !mounted[path] })
	if len(files) == 0 {
		return unproven("not tried", "neither file is the sandbox's own")
	}
	restore, err := rewrite(files)
	if err != nil {
		return held("%v", err)
	}
	s := a.deniedQuestion("udp", netip.AddrPortFrom(a.IPv4, 53), a.Name)
	if err := restore(); err != nil {
		return unproven(s.seen, "the files could not be put back: "+err.Error())
	}
	return s
}

// mountPoints are the paths on which something is mounted.
func mountPoints() map[string]bool {
	points := map[string]bool{}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return points
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 {
			points[f[4]] = true
		}
	}
	return points
}

// rewrite changes all files or none.
func rewrite(files map[string]string) (restore func() error, err error) {
	before := map[string][]byte{}
	restore = func() error {
		var errs []error
		for path, data := range before {
			errs = append(errs, writeOver(path, data))
		}
		return errors.Join(errs...)
	}
	for path, text := range files {
		old, err := os.ReadFile(path)
		if err == nil {
			err = writeOver(path, []byte(text))
		}
		if err != nil {
			return nil, errors.Join(err, restore())
		}
		before[path] = old
	}
	return restore, nil
}

// writeOver writes into the file that is there, which may be a mount.
func writeOver(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
