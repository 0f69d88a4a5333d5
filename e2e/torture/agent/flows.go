package main

import (
	"context"
	"flag"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// flows keeps -n flows alive, of each kind in turn, to each target in turn: it
// opens one anew whenever it ended. It says
//
//	open ID KIND TARGET OPENED     when bytes came back for the first time
//	failed KIND TARGET ERROR       when none did
//	end ID KIND TARGET OPENED LAST NOW ERROR
//
// with times in nanoseconds of Unix; OPENED is before the dial, LAST is when bytes came back last.
func flows(ctx context.Context, args []string, say func(string, ...any)) error {
	flags := flag.NewFlagSet("flows", flag.ContinueOnError)
	n := flags.Int("n", 10, "so many flows")
	kinds := flags.String("kinds", "tls,http,h2c,opaque,connect", "kinds to names")
	names := flags.String("names", "", "names")
	addressKinds := flags.String("address-kinds", "direct", "kinds to addresses")
	addresses := flags.String("addresses", "", "addresses")
	explicit := flags.String("explicit", "", "the explicit proxy")
	every := flags.Duration("every", 50*time.Millisecond, "how often bytes go there and back")
	if err := flags.Parse(args); err != nil {
		return err
	}
	type plan struct {
		kind    string
		targets []string
	}
	var plans []plan
	cross := func(kinds, targets string) {
		all := strings.FieldsFunc(targets, func(r rune) bool { return r == ',' })
		for _, k := range strings.Split(kinds, ",") {
			if len(all) > 0 {
				plans = append(plans, plan{k, all})
			}
		}
	}
	cross(*kinds, *names)
	cross(*addressKinds, *addresses)
	var ids atomic.Uint64
	var work sync.WaitGroup
	for i := range *n {
		// As many of each kind, however many targets that has.
		p := plans[i%len(plans)]
		target := p.targets[i/len(plans)%len(p.targets)]
		work.Go(func() {
			for ctx.Err() == nil {
				keep(ctx, ids.Add(1), p.kind, target, *explicit, *every, say)
				pause(ctx, max(20*time.Millisecond, *every/2))
			}
		})
	}
	work.Wait()
	return nil
}

// keep opens one flow and uses it until it ends.
func keep(ctx context.Context, id uint64, kind, target, explicit string, every time.Duration, say func(string, ...any)) {
	// The agent may be late to read what came before an end: what counts is when it
	// began.
	opened := time.Now()
	f, err := openers[kind](ctx, target, explicit)
	if err != nil {
		say("failed %s %s %s", kind, target, oneLine(err))
		return
	}
	unhook := context.AfterFunc(ctx, func() { f.Close() })
	defer unhook()
	defer f.Close()
	if err := f.exchange(); err != nil {
		say("failed %s %s %s", kind, target, oneLine(err))
		return
	}
	last := time.Now()
	say("open %d %s %s %d", id, kind, target, opened.UnixNano())
	for {
		pause(ctx, every)
		err := f.exchange()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			say("end %d %s %s %d %d %d %s", id, kind, target, opened.UnixNano(), last.UnixNano(), time.Now().UnixNano(), oneLine(err))
			return
		}
		last = time.Now()
	}
}

// pause waits for about d.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d/2 + rand.N(d)):
	case <-ctx.Done():
	}
}
