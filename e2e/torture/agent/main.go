package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
)

// job is something that the agent does until ctx ends or it is done.
type job func(ctx context.Context, args []string, say func(format string, args ...any)) error

var jobs = map[string]job{
	"flows":    flows,
	"idle":     idle,
	"slow":     slow,
	"names":    askNames,
	"packets":  packets,
	"exhaust":  exhaust,
	"halfopen": halfOpen,
	"connects": connects,
	"fetches":  fetches,
}

func main() {
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
