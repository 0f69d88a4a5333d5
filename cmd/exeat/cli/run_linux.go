//go:build !image

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/control"
	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sealed"
	"github.com/exeat/exeat/sidecar"
)

// atStart is called first thing: the sandbox's process 1 is this binary, too.
func atStart() { sealed.Init() }

// runSealed stands the sealed shape up, runs the command in it, and takes it down.
func (s *streams) runSealed(ctx context.Context, in runInput) error {
	if err := s.checkCapabilities(sealed.Capabilities(), "policy", in.beginning.document); err != nil {
		return err
	}
	setup, err := s.setUp(in)
	if err != nil {
		return err
	}
	log, err := s.openLog(in.flags.log)
	if err != nil {
		return err
	}
	defer s.closing("log", log.Close)
	setup.Log.Writer = log.Writer
	hidden, err := logFilesOf(in.flags.log)
	if err != nil {
		return err
	}

	sidecar.LimitMemory()
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	box, err := sealed.Start(ctx, sealed.Spec{
		Args: in.args, AsRoot: in.flags.asRoot, Keep: in.flags.keep,
		HideDirs: controlDirs(), HideFiles: hidden, RemoveOnParentDeath: []string{in.socket},
		AddHosts: hostEntries(setup.DNS.Pins),
	})
	if err != nil {
		return err
	}
	defer s.closing("sandbox", box.Close)
	// Who may read our memory has our sockets (bypass B73). Not before now: the ids
	// of a child of ours could not be mapped.
	if err := sealed.Undumpable(); err != nil {
		return err
	}
	for _, w := range box.Warnings() {
		s.complain("exeat: warning: %s", w)
	}
	setup.Engine.Kernel = sealedKernel{box.Kernel()}
	car, err := sidecar.Assemble(setup)
	if err != nil {
		return err
	}
	defer s.closing("engine", car.Close)
	status, err := s.serveAndWait(ctx, kill, in, box, car)
	if err != nil {
		return err
	}
	if !in.flags.quiet {
		if err := writeSummary(s.err, car.Log().Summary()); err != nil {
			return outputError(err)
		}
	}
	if status != 0 {
		return &exitError{code: status}
	}
	return nil
}

// logFilesOf are the files of --log, which the command may not change: that it runs
// as the user who owns them is no leave to.
func logFilesOf(path string) ([]string, error) {
	if path == "" || path == "-" {
		return nil, nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	for n := range logFiles {
		files = append(files, fmt.Sprintf("%s.%d", path, n+1))
	}
	return files, nil
}

// setUp wires what the flags say.
func (s *streams) setUp(in runInput) (sidecar.Setup, error) {
	var setup sidecar.Setup
	var err error
	if setup.DNS.Pins, err = parseHosts(in.flags.hosts); err != nil {
		return setup, err
	}
	if setup.Proxy.UpstreamProxy, err = parseUpstreamProxy(in.flags.upstreamProxy); err != nil {
		return setup, err
	}
	if setup.DNS.Upstreams, setup.DNS.Search, err = resolvers(in.flags.resolvers); err != nil {
		return setup, err
	}
	setup.DNS.Local, setup.Proxy.Local = sandboxOwn, sandboxOwn
	setup.Engine = sidecar.Config{
		Version: readBuildVersion().Version, Shape: sidecar.Sealed, Name: in.name,
		Policy: in.beginning.document, Phase: in.beginning.phase, Phases: in.beginning.phases,
		Floor: in.floor, Capabilities: sealed.Capabilities(),
	}
	return setup, nil
}

// sandboxOwn says which addresses are the sandbox's own.
func sandboxOwn(a netip.Addr) bool { return a == sealed.AddressIPv4 || a == sealed.AddressIPv6 }

// resolvers are the upstreams of --resolver, or those of the host.
func resolvers(args []string) ([]dnsfilter.Upstream, []string, error) {
	upstreams, search, err := dnsfilter.ReadResolvConf("/etc/resolv.conf")
	if len(args) == 0 {
		return upstreams, search, err
	}
	// A host without the file is no reason to refuse servers that were named.
	upstreams, err = parseAll("--resolver", dnsfilter.ParseUpstream, args)
	return upstreams, search, err
}

// hostEntries are the pinned names as /etc/hosts lists them.
func hostEntries(pins map[string][]netip.Addr) []sealed.HostEntry {
	entries := make([]sealed.HostEntry, 0, len(pins))
	for name, addrs := range pins {
		entries = append(entries, sealed.HostEntry{Name: name, Addrs: addrs})
	}
	slices.SortFunc(entries, func(a, b sealed.HostEntry) int { return strings.Compare(a.Name, b.Name) })
	return entries
}

// serveAndWait puts the policy in force, serves, starts the command and waits
// for it. When it returns the engine serves no more.
func (s *streams) serveAndWait(ctx context.Context, kill func(), in runInput, box *sealed.Sandbox, car *sidecar.Sidecar) (status int, err error) {
	if err := car.Begin(ctx); err != nil {
		return 0, err
	}
	sameNamespaces, err := control.SameNamespaces()
	if err != nil {
		return 0, err
	}
	server, err := control.New(control.Config{Engine: car, Log: car.Log(), Authorize: sameNamespaces})
	if err != nil {
		return 0, err
	}
	socket, err := control.Listen(in.socket, control.Access{})
	if err != nil {
		return 0, fmt.Errorf("sandbox %q: %w", in.name, err)
	}
	serving, stop := context.WithCancel(ctx)
	group, serving := errgroup.WithContext(serving)
	group.Go(func() error { return server.Serve(serving, socket) })
	group.Go(func() error { return car.Serve(serving, listeners(box)) })
	group.Go(func() error { return box.Refusals(serving, func(r sealed.Refused) { car.Refused(refusal(r)) }) })
	// A part that fails while CMD runs takes CMD with it: what it would do next
	// nobody would see.
	unwatch := context.AfterFunc(serving, kill)
	defer func() {
		unwatch()
		stop()
		err = errors.Join(err, group.Wait())
	}()
	car.SetReady(true, "rules loaded, listeners bound")
	var env []string
	if in.flags.proxyEnv {
		env = proxyEnv(box.ProxyAddr())
	}
	// Before CMD starts: a signal that came in between would end us instead.
	unrelay := box.RelaySignals()
	defer unrelay()
	if err := box.Release(env...); err != nil {
		return 0, execError(err)
	}
	return box.Wait()
}

// proxyEnv are the variables by which clients are told of a proxy, in both of
// their spellings.
func proxyEnv(addr string) []string {
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env = append(env, name+"=http://"+addr, strings.ToLower(name)+"=http://"+addr)
	}
	return append(env, "NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1")
}

// execError gives a command that could not be started its status.
func execError(err error) error {
	var exec *sealed.ExecError
	if errors.As(err, &exec) {
		return &exitError{code: exec.Status, err: err}
	}
	return err
}

// listeners are the sandbox's sockets as the engine serves them.
func listeners(box *sealed.Sandbox) sidecar.Listeners {
	l := sidecar.Listeners{Transparent: box.TCP(), Explicit: box.Explicit()}
	packets, streams := box.DNS()
	for _, c := range packets {
		l.DNSPackets = append(l.DNSPackets, c)
	}
	for _, c := range streams {
		l.DNSStreams = append(l.DNSStreams, c)
	}
	return l
}

// refusal tells the engine of a packet that the sandbox's ruleset refused.
func refusal(r sealed.Refused) sidecar.Refusal {
	refusal := sidecar.Refusal{Addr: r.Destination.Addr(), Port: r.Destination.Port(), Lost: r.Lost}
	switch r.Protocol {
	case unix.IPPROTO_TCP:
		refusal.Protocol = policy.TCP
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		refusal.Protocol = policy.ICMP
	default:
		refusal.Protocol = policy.UDP
	}
	return refusal
}

// sealedKernel is the sandbox's ruleset as a swap needs it. No flow bypasses the
// proxy in the sealed shape, so a swap of the ruleset cuts none.
type sealedKernel struct{ *sealed.Kernel }

func (k sealedKernel) Swap(ctx context.Context, c *policy.Compiled, attributed []firewall.Attributed) (int, error) {
	return 0, k.Kernel.Swap(ctx, c, func() []firewall.Attributed { return attributed })
}

// Attribute needs no name: a swap of this shape writes every opening anew.
func (k sealedKernel) Attribute(ctx context.Context, _ string, addrs []netip.Addr, openings []policy.Opening, ttl time.Duration) error {
	return k.Kernel.Attribute(ctx, addrs, openings, ttl)
}
