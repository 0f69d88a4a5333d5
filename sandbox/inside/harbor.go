package inside

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/exeat/exeat/control/client"
)

// The contract of Harbor's egress sidecar as it is seen from outside.
const (
	harborMode  = "EGRESS_CONTROL_INITIAL_NETWORK_MODE"
	harborHosts = "EGRESS_CONTROL_INITIAL_ALLOWED_HOSTS"
	harborReady = "/tmp/harbor-docker-egress-control-sidecar.ready"
)

// harborState is where what is in force outlives a restart of the container.
const harborState = "/var/lib/exeat"

// harbor is the entry point of the image for Harbor: it becomes exeatd with the
// policy of the environment, and leaves a child behind that keeps the ready file.
func harbor(ctx context.Context, c Call) int {
	if role := c.readiness(); role != nil {
		if err := renounce(); err != nil {
			c.complain("harbor-egress: %v", err)
			return statusNo
		}
		return role(ctx, c.Args[1])
	}
	args, err := harborArgs(c.Env(harborMode), c.Env(harborHosts))
	if err != nil {
		c.complain("harbor-egress: %v", err)
		return statusUsage
	}
	// What a run before left must not be taken for ours.
	if err := setReady(harborReady, false); err != nil {
		c.complain("harbor-egress: %v", err)
		return statusNo
	}
	if err := become(append(args, c.Args...)); err != nil {
		c.complain("harbor-egress: %v", err)
	}
	return statusNo
}

// harborArgs are exeatd's arguments for the initial policy.
func harborArgs(mode, hosts string) ([]string, error) {
	args := []string{"--control", ControlSocket, "--state", harborState, "--resolver-from-file"}
	switch mode {
	case "", "public":
		return append(args, "--mode", "public"), nil
	case "no-network":
		return append(args, "--mode", "no-network"), nil
	case "allowlist":
		args = append(args, "--mode", "allowlist")
		for _, host := range strings.Fields(hosts) {
			args = append(args, "--allow="+host)
		}
		return args, nil
	}
	return nil, fmt.Errorf("%s=%q: want public, no-network or allowlist", harborMode, mode)
}

// watchEvery is how often readiness is asked for, and again how long it takes until
// what keeps the file is started again.
const watchEvery = 250 * time.Millisecond

// The two processes that keep the ready file: watch starts keep, again where that
// died, and where watch died keep takes its place. Whoever kills one of them would
// leave a file else that says what is not so any more.
const (
	harborWatch = "watch"
	harborKeep  = "keep"
)

// readiness is which of the two this process is; nil is neither.
func (c Call) readiness() func(ctx context.Context, file string) int {
	switch {
	case len(c.Args) != 2:
	case c.Args[0] == harborWatch:
		return c.watch
	case c.Args[0] == harborKeep:
		return c.keep
	}
	return nil
}

// watch runs what keeps the ready file until ctx ends.
func (c Call) watch(ctx context.Context, file string) int {
	for {
		err := c.runKeep(ctx, file)
		if ctx.Err() != nil && err == nil {
			return statusDone
		}
		c.complain("harbor-egress: what keeps the ready file ended, and is started again: %v", err)
		select {
		case <-ctx.Done():
			return statusNo
		case <-time.After(watchEvery):
		}
	}
}

// runKeep runs keep until it ends, and tells it to when ctx does: its standard input
// ends without a word where we die.
func (c Call) runKeep(ctx context.Context, file string) error {
	cmd := exec.Command("/proc/self/exe", harborKeep, file)
	cmd.Args[0] = "harbor-egress"
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		if _, err := in.Write([]byte{'\n'}); err != nil {
			c.complain("harbor-egress: end what keeps the ready file: %v", err)
		}
	})
	defer stop()
	return cmd.Wait()
}

// keep keeps the ready file until ctx ends, or watch says so.
func (c Call) keep(ctx context.Context, file string) int {
	ctx, end := context.WithCancel(ctx)
	defer end()
	orphan := make(chan bool, 1)
	go func() {
		n, _ := c.In.Read(make([]byte, 1)) // an error is the end, too
		orphan <- n == 0
		end()
	}()
	to := client.New(c.socket())
	defer to.Close()
	err := keepReady(ctx, to, file)
	if err == nil {
		select {
		case alone := <-orphan:
			if alone {
				err = again(harborWatch, file)
			}
		default: // we were told to end by a signal
		}
	}
	if err != nil {
		c.complain("harbor-egress: %v", err)
		return statusNo
	}
	return statusDone
}

// keepReady has the file there while the sidecar is ready, and no longer; when it
// returns it is not there.
func keepReady(ctx context.Context, to *client.Client, file string) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, 2*time.Second)
		ready := to.Ready(asking) == nil
		cancel()
		if err := setReady(file, ready); err != nil {
			return errors.Join(err, setReady(file, false))
		}
		select {
		case <-ctx.Done():
			return setReady(file, false)
		case <-tick.C:
		}
	}
}

// setReady makes or removes the file, where it is not as it should be.
func setReady(file string, ready bool) error {
	_, err := os.Lstat(file)
	switch there := err == nil; {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case there == ready:
		return nil
	case !ready:
		return os.Remove(file)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
