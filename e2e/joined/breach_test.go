//go:build linux

package joined

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/policy"
)

// says waits for words in the log.
func (s *sidecar) says(t testing.TB, words string) {
	t.Helper()
	lab.Eventually(t, words, func() bool { return strings.Contains(s.Stdout.String(), words) })
}

// deniedAll says that everything is denied and the sidecar not ready.
func (s *sidecar) deniedAll(t *testing.T) {
	t.Helper()
	lab.Eventually(t, "lockdown", func() bool { return s.Ready(t.Context()) != nil })
	lab.Eventually(t, "no-network", func() bool {
		state, err := s.Policy(t.Context())
		return err == nil && state.Policy.Mode == "no-network"
	})
	s.refused(t, "tcp", "203.0.113.7:7")
}

func TestRulesThatSomebodyElseRemovesComeBackAndDenyEverything(t *testing.T) {
	nft := require.Tool(t, "nft")
	for name, command := range map[string]string{
		"the whole ruleset is flushed": "flush ruleset",
		"our table is deleted":         "delete table inet exeat",
		"a rule is added":              "insert rule inet exeat output accept",
		"a chain is emptied":           "flush chain inet exeat agent",
	} {
		t.Run(name, func(t *testing.T) {
			forbidden := serveUDP(t, "203.0.113.66:7")
			s := start(t, "--allow", "203.0.113.7:7")
			f := s.talk(t, "203.0.113.7:7")
			s.Sh(t, nft+" "+command)
			s.says(t, "somebody else")
			s.deniedAll(t)
			f.died(t, "a flow over the change")
			s.refused(t, "tcp", "203.0.113.66:22")
			s.refused(t, "udp", "203.0.113.66:7")
			s.swap(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.7:7"]}`)
			s.AwaitReady(t)
			s.echoes(t, "203.0.113.7:7")
			if forbidden.count() > 0 {
				t.Errorf("%d forbidden datagrams arrived", forbidden.count())
			}
		})
	}
}

// A lockdown outlives the worker that made it, also where the kernel refused it: here
// because the table has another owner, who may do with it what they like.
func TestALockdownOutlivesItsWorker(t *testing.T) {
	s := start(t, "--allow", "203.0.113.7:7")
	release := s.ownOurTable(t)
	s.says(t, "the kernel did not take the rules of no-network")
	worker := s.Worker(t)
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "a worker that is locked down", func() bool {
		status, err := s.Status(t.Context())
		return err == nil && status.PID != worker && status.Mode == policy.ModeNoNetwork && strings.Contains(fmt.Sprint(status.Health), "somebody else")
	})
	release()
	lab.Eventually(t, "rules that deny", func() bool {
		_, err := s.try("tcp", "203.0.113.7:7")
		return lab.Refused(err)
	})
	s.deniedAll(t)
	s.swap(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.7:7"]}`)
	s.AwaitReady(t)
	s.echoes(t, "203.0.113.7:7")
}

// ownOurTable takes our table away and keeps one of its name, which nobody else may
// change (nft(8), flags owner), until release.
func (s *sidecar) ownOurTable(t *testing.T) (release func()) {
	t.Helper()
	cmd := exec.Command(require.Tool(t, "nft"), "-i")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = s.In(cmd.Start)
	}
	if err == nil {
		_, err = io.WriteString(in, "delete table inet exeat; add table inet exeat { flags owner; }\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

func TestALinkThatAppearsLater(t *testing.T) {
	const links = `ip link add late0 type veth peer name late1; ip addr add 198.18.0.1/24 dev late0; ip link set late0 up; ip link set late1 up`
	t.Run("means lockdown where the sandbox may have NET_RAW", func(t *testing.T) {
		s := start(t, "--allow", "203.0.113.7:7")
		s.Sh(t, links)
		s.says(t, "link late0 appeared after the start")
		s.deniedAll(t)
		lab.Eventually(t, "the link to be down", func() bool {
			return !strings.Contains(s.Sh(t, "ip -o link show late0"), ",UP")
		})
		s.Sh(t, "ip link del late0")
		s.swap(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.7:7"]}`)
		s.AwaitReady(t)
	})
	t.Run("comes under the rules where it may not", func(t *testing.T) {
		s := start(t, "--allow", "203.0.113.7:7", "--sandbox-net-raw=no")
		s.Sh(t, links)
		time.Sleep(100 * time.Millisecond)
		s.refused(t, "udp", "198.18.0.2:7")
		s.echoes(t, "203.0.113.7:7")
		s.AwaitReady(t)
	})
}

func TestAProbeThatFails(t *testing.T) {
	nft := require.Tool(t, "nft")
	// Somebody else's rules can't let anything out, but they can keep us from
	// being asked.
	spoil := nft + ` 'add table ip other; add chain ip other o { type filter hook output priority -200; }; add rule ip other o udp dport 53 drop'`
	t.Run("denies everything", func(t *testing.T) {
		s := start(t, "--allow", "203.0.113.7:7", "--schedule", "200ms")
		s.Sh(t, spoil)
		s.says(t, "the rules do not hold")
		s.deniedAll(t)
	})
	t.Run("or is reported", func(t *testing.T) {
		s := start(t, "--allow", "203.0.113.7:7", "--schedule", "200ms", "--on-breach", "report")
		s.Sh(t, spoil)
		s.says(t, "the rules do not hold")
		lab.Eventually(t, "not ready", func() bool { return s.Ready(t.Context()) != nil })
		s.echoes(t, "203.0.113.7:7")
		s.Sh(t, nft+" delete table ip other")
		s.AwaitReady(t)
	})
}

func TestInboundIsRefusedUnlessItWasOpened(t *testing.T) {
	s := start(t, "--inbound", "8080", "--allow", "203.0.113.7:7")
	for _, port := range []string{"8080", "8081"} {
		if err := s.listen(t, port); err != nil {
			t.Fatal(err)
		}
	}
	if err := fromOutside(s.Addr.String() + ":8080"); err != nil {
		t.Errorf("the opened port: %v", err)
	}
	if err := fromOutside(s.Addr.String() + ":8081"); err == nil {
		t.Error("a port that was not opened let a connection in")
	}
	s.says(t, `"verdict":"allow"`)
	s.says(t, `"port":8081,"protocol":"tcp","message":"inbound"`)
}
