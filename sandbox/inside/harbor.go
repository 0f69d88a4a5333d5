package inside

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	if len(c.Args) > 0 && c.Args[0] == "watch" {
		return c.watch(ctx)
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

// watchEvery is how often readiness is asked for.
const watchEvery = 250 * time.Millisecond

// watch keeps the ready file, with no capability.
func (c Call) watch(ctx context.Context) int {
	err := renounce()
	if err == nil {
		to := client.New(ControlSocket)
		defer to.Close()
		err = keepReady(ctx, to, harborReady)
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
