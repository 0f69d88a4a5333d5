//go:build linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/exeat/exeat/dnsfilter"
	"github.com/exeat/exeat/firewall"
)

// findResolvers finds out what names are asked of. What the first start found is
// kept, by the namespace itself and in --state, and nothing is looked for again: a
// sandbox that is here by now could have us find another. It may write resolv.conf,
// serve 127.0.0.11, and with NET_RAW see the name that discover asks for, and ask
// somebody else for it first. guarded says that this is not the first start here.
func (k *Keeper) findResolvers(ctx context.Context, kernel *firewall.Kernel, guarded bool) error {
	found, known, err := k.recallResolvers(kernel)
	if err == nil && !known && !guarded {
		found, err = k.lookForResolvers(ctx, kernel)
	}
	if err != nil {
		return fmt.Errorf("find the resolver (or name it: --resolver ADDR): %w", err)
	}
	if known || !guarded {
		if err := k.keepResolvers(kernel, found); err != nil {
			return fmt.Errorf("keep what names are asked of: %w", err)
		}
	}
	k.base.Resolvers = found
	switch named := k.config.Resolvers; {
	case len(named) > 0:
		k.base.Resolvers.Upstreams, k.base.Resolvers.Search = named, nil
	case !known && guarded:
		fmt.Fprintln(k.err, "exeatd: warning: this namespace was guarded before, and what names were asked of then is not known: whoever is in it by now could choose the resolver, so none is looked for, and only pinned names resolve: give --resolver ADDR, or start anew in another namespace")
	case len(found.Upstreams) == 0:
		fmt.Fprintln(k.err, "exeatd: warning: no resolver is known, so only pinned names resolve: give --resolver ADDR, or --resolver-from-file where nothing has joined this namespace yet")
	}
	return nil
}

// lookForResolvers discovers the engine's DNS, or reads the file that is there for
// want of one.
func (k *Keeper) lookForResolvers(ctx context.Context, kernel *firewall.Kernel) (resolvers, error) {
	found, err := k.discover(ctx, kernel)
	if err != nil || len(found.Upstreams) > 0 || len(k.config.Resolvers) > 0 || k.config.ResolvConf == "" {
		return found, err
	}
	return k.readResolvConf(found)
}

// recallResolvers gives what the first start found: that of the state directory,
// which may have been in another namespace, or else that of this one.
func (k *Keeper) recallResolvers(kernel *firewall.Kernel) (found resolvers, known bool, err error) {
	if disk := k.memory.disk; disk != nil {
		found, err = disk.loadResolvers()
		if err == nil {
			return found, true, nil
		}
		if !errors.Is(err, ErrNoState) {
			return found, false, fmt.Errorf("read what was kept in --state: %w", err)
		}
	}
	line, known, err := kernel.Kept()
	if known && err == nil {
		found, err = resolversOf(line)
	}
	return found, known, err
}

// keepResolvers keeps what was found where recallResolvers finds it. That nothing
// was is kept in the namespace alone: the next one may have a resolver.
func (k *Keeper) keepResolvers(kernel *firewall.Kernel, found resolvers) error {
	err := kernel.Keep(found.line())
	if disk := k.memory.disk; err == nil && disk != nil && len(found.Upstreams) > 0 {
		err = disk.keepResolvers(found)
	}
	return err
}

// readResolvConf reads the file at the first start of a state directory alone:
// whoever has joined since may have written it (bypass.md B46).
func (k *Keeper) readResolvConf(found resolvers) (resolvers, error) {
	if k.memory.disk == nil {
		return found, errors.New("--resolver-from-file: needs --state DIR, to remember what was read: at a restart the sandbox may have written the file")
	}
	upstreams, search, err := dnsfilter.ReadResolvConf(k.config.ResolvConf)
	if err != nil {
		return found, fmt.Errorf("--resolver-from-file: %w", err)
	}
	for _, u := range upstreams {
		if !u.Addr.Addr().IsLoopback() {
			found.Upstreams = append(found.Upstreams, u.String())
		}
	}
	found.Search = search
	if len(found.Upstreams) == 0 {
		return found, fmt.Errorf("--resolver-from-file: %s names no server but on loopback: give --resolver ADDR", k.config.ResolvConf)
	}
	return found, nil
}

// resolvers are what names are asked of, as found at the first start.
type resolvers struct {
	Upstreams []string `json:"upstreams"`
	Search    []string `json:"search,omitempty"`
	// Engine says that the engine's DNS is there; single labels are asked of it.
	Engine bool `json:"engine,omitempty"`
	// EngineUpstreams are whom the engine's DNS asks from inside this namespace.
	EngineUpstreams []netip.Addr `json:"engine_upstreams,omitempty"`
}

// The words of a resolvers' text.
const (
	wordNothing        = "nothing"
	wordEngine         = "engine"
	wordUpstream       = "upstream"
	wordSearch         = "search"
	wordEngineUpstream = "engine-upstream"
)

// line writes r as the namespace keeps it, such as "engine upstream=192.0.2.53".
func (r resolvers) line() string {
	var words []string
	if r.Engine {
		words = append(words, wordEngine)
	}
	for _, u := range r.Upstreams {
		words = append(words, wordUpstream+"="+u)
	}
	for _, s := range r.Search {
		words = append(words, wordSearch+"="+s)
	}
	for _, a := range r.EngineUpstreams {
		words = append(words, wordEngineUpstream+"="+a.String())
	}
	if len(words) == 0 {
		return wordNothing
	}
	return strings.Join(words, " ")
}

// resolversOf reads what line wrote.
func resolversOf(line string) (r resolvers, err error) {
	for _, word := range strings.Fields(line) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case wordNothing:
		case wordEngine:
			r.Engine = true
		case wordUpstream:
			r.Upstreams = append(r.Upstreams, value)
		case wordSearch:
			r.Search = append(r.Search, value)
		case wordEngineUpstream:
			a, err := netip.ParseAddr(value)
			if err != nil {
				return resolvers{}, fmt.Errorf("the resolvers that this namespace keeps: %w", err)
			}
			r.EngineUpstreams = append(r.EngineUpstreams, a)
		default:
			return resolvers{}, fmt.Errorf("the resolvers that this namespace keeps: no word %q", key)
		}
	}
	return r, nil
}
