package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// job is something that the agent does until ctx ends or it is done.
type job func(ctx context.Context, args []string, say func(format string, args ...any)) error

var jobs = map[string]job{
	"flows":    flows,
	"idle":     idle,
	"crowd":    idle,
	"echoes":   echoes,
	"halfopen": halfOpen,
	"slow":     slow,
	"names":    askNames,
	"packets":  packets,
	"exhaust":  exhaust,
	"giveup":   giveUp,
	"spread":   spread,
	"syns":     synchronise,
	"connects": connects,
	"fetches":  fetches,
}

// apart are the jobs that have a process of their own: what is to be measured beside
// a flood must not wait for the flooder's own scheduler, and a crowd needs its own
// descriptors.
var apart = map[string]bool{"fetches": true, "crowd": true, "halfopen": true}

func main() {
	if len(os.Args) > 2 {
		alone(os.Args[1], os.Args[2:])
		return
	}
	var out sync.Mutex
	running := map[string]context.CancelFunc{}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		id := words[0]
		say := func(format string, args ...any) {
			out.Lock()
			defer out.Unlock()
			fmt.Printf(id+" "+format+"\n", args...)
		}
		if words[1] == "stop" {
			if stop := running[id]; stop != nil {
				stop()
			}
			continue
		}
		if apart[words[1]] {
			stop, err := begin(words)
			if err != nil {
				say("done %v", err)
				continue
			}
			running[id] = stop
			continue
		}
		run := jobs[words[1]]
		if run == nil {
			say("done no job %s", words[1])
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		running[id] = cancel
		go func() {
			if err := run(ctx, words[2:], say); err != nil && ctx.Err() == nil {
				say("done %v", err)
				return
			}
			say("done")
		}()
	}
}

// begin starts a process for one job, which it stops by closing its standard input.
func begin(words []string) (stop func(), err error) {
	cmd := exec.Command(os.Args[0], words...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr // a line is one write
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		stdin.Close()
		cmd.Wait()
	}, nil
}

// alone does one job until standard input ends.
func alone(id string, words []string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	say := func(format string, args ...any) { fmt.Printf(id+" "+format+"\n", args...) }
	if err := jobs[words[0]](ctx, words[1:], say); err != nil && ctx.Err() == nil {
		say("done %v", err)
		return
	}
	say("done")
}
