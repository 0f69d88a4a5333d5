//go:build linux

package sidecar

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/firewall"
)

// TestARenamedLinkMeansLockdownAndIsHookedAgain, where the rules know links by
// their names (Linux 5.16 to 6.16): the kernel takes the hook off a link that is
// renamed (bypass.md B21).
func TestARenamedLinkMeansLockdownAndIsHookedAgain(t *testing.T) {
	require.Root(t)
	nft, ip := require.Tool(t, "nft"), require.Tool(t, "ip")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		run(ip, "link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
		w := renamingWorker(t)
		if w == nil {
			return
		}
		if rules := run(nft, "list", "table", "netdev", "exeat"); !strings.Contains(rules, "eth0") {
			t.Errorf("eth0 has no hook: %s", rules)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- w.links.Run(ctx, w.sawLink) }()
		run(ip, "link", "set", "eth0", "name", "net0")
		select {
		case why := <-w.strange:
			if !strings.Contains(why, "link eth0 was renamed to net0") {
				t.Errorf("lockdown because %q", why)
			}
		case <-ctx.Done():
			t.Error("no lockdown")
		}
		for ctx.Err() == nil && !strings.Contains(run(nft, "list", "table", "netdev", "exeat"), `"net0"`) {
			runtime.Gosched()
		}
		if ctx.Err() != nil {
			t.Error("net0 gets no hook")
		}
		cancel()
		if err := errors.Join(<-ended, w.links.Close(), w.kernel.Close(), w.car.log.Close()); err != nil {
			t.Error(err)
		}
	}()
	<-done
}

// renamingWorker is as much of a worker as watches links.
func renamingWorker(t *testing.T) *joinedWorker {
	yes := true
	found, err := links()
	if err != nil {
		t.Error(err)
		return nil
	}
	w := &joinedWorker{handover: handover{Links: found, Features: firewall.Features{Egress: &yes}}, strange: make(chan string, 16)}
	if w.kernel, err = firewall.Open(); err == nil {
		w.links, err = firewall.OpenWatchLinks()
	}
	if err == nil {
		w.fw = firewall.New(w.kernel, w.input(firewall.Own{UID: nobody}, firewall.NewSecrets(probeMark)), nil)
		err = w.fw.Apply()
	}
	if err != nil {
		t.Error(err)
		return nil
	}
	w.guard = newLinkGuard(w.handover)
	w.car = &Sidecar{log: audit.New(audit.Config{})}
	return w
}
