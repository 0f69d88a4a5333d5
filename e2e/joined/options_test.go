//go:build linux

package joined

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

func TestEverythingGoesThroughAnUpstreamProxy(t *testing.T) {
	s := start(t, "--allow", "pypi.test", "--upstream-proxy", "http://203.0.113.99:3128")
	args := s.byName(t, "pypi.test")
	before := len(world.Seen())
	s.fetches(t, "https://pypi.test/", args...)
	through := false
	for _, v := range world.Seen()[before:] {
		through = through || strings.Contains(v.To, ":3128")
	}
	if !through {
		t.Errorf("the proxy saw nothing: %+v", world.Seen()[before:])
	}
	s.fetchesNot(t, "https://evil.test/", "--resolve", "evil.test:443:203.0.113.66")
}

func TestAFamilyThatAppearsLaterGetsListeners(t *testing.T) {
	s := prepare(t, "--allow", "pypi.test", "--allow", "[2001:db8::7]:7")
	const sysctl = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
	s.Sh(t, "echo 1 >"+sysctl)
	s.Begin(t)
	s.AwaitReady(t)
	s.fetches(t, "https://pypi.test/", "--resolve", "pypi.test:443:203.0.113.10")
	s.Sh(t, "echo 0 >"+sysctl)
	n := strings.TrimPrefix(s.Far, "far")
	s.Sh(t, "ip -6 addr add fd00:64:"+n+"::2/64 dev eth0 nodad; ip -6 route replace default via fd00:64:"+n+"::1")
	s.refused(t, "tcp", "[2001:db8::66]:22")
	s.says(t, "the worker before ended with status 75")
	s.AwaitReady(t)
	s.fetches(t, "https://pypi.test/", "--resolve", "pypi.test:443:[2001:db8::10]")
	s.fetchesNot(t, "https://evil.test/", "--resolve", "evil.test:443:[2001:db8::66]")
	s.echoes(t, "[2001:db8::7]:7")
	if a := s.resolve(t, "evil.test", dns.TypeAAAA, "[2001:db8::53]:53"); a.Rcode != dns.RcodeNameError {
		t.Errorf("evil.test: %v", a)
	}
}

// granted starts exeatd as Docker does a container: with these capabilities alone.
func (s *sidecar) granted(t *testing.T, capabilities string) {
	t.Helper()
	s.Wrap = []string{
		require.Tool(t, "setpriv"), "--bounding-set", "-all," + capabilities, "--inh-caps", "-all",
		"--clear-groups",
	}
}

func TestTheCapabilitiesThatItNeeds(t *testing.T) {
	for _, c := range []struct {
		name, granted string
		grouped       bool
		flags         []string
		want          string // what it says when it cannot start
	}{
		{"NET_ADMIN and NET_RAW", "+net_admin,+net_raw", true, nil, ""},
		{"NET_ADMIN alone where the sandbox has no NET_RAW", "+net_admin", true, []string{"--sandbox-net-raw=no"}, ""},
		{"NET_ADMIN alone where the sandbox has NET_RAW", "+net_admin", true, nil, "grant NET_RAW at start"},
		{"SETUID too where control groups don't tell us apart", "+net_admin,+net_raw,+setuid", false, nil, ""},
		{"no SETUID where control groups don't tell us apart", "+net_admin,+net_raw", false, nil, "grant SETUID"},
		{"nothing", "+net_raw", true, nil, "grant NET_ADMIN"},
		{"no NET_RAW for a sandbox on a kernel without the egress hook", "+net_admin,+net_raw", true, []string{"--no-egress-hook"}, "drop NET_RAW from the sandbox"},
		{"a sandbox without NET_RAW on such a kernel", "+net_admin", true, []string{"--no-egress-hook", "--sandbox-net-raw=no"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := prepare(t, append(c.flags, "--allow", "203.0.113.7:7", "--allow", "pypi.test")...)
			s.granted(t, c.granted)
			if !c.grouped {
				s.Group = nil
			}
			s.Begin(t)
			if c.want != "" {
				if err := <-s.Ended; err == nil {
					t.Error("it started")
				}
				s.Ended <- nil
				if !strings.Contains(s.Stderr.String(), c.want) {
					t.Errorf("it said %q, want %q", s.Stderr.String(), c.want)
				}
				return
			}
			s.AwaitReady(t)
			s.echoes(t, "203.0.113.7:7")
			s.fetches(t, "https://pypi.test/", s.byName(t, "pypi.test")...)
			s.refused(t, "tcp", "203.0.113.66:22")
			s.killWorker(t)
			s.fetches(t, "https://pypi.test/", s.byName(t, "pypi.test")...)
		})
	}
}

func TestTheLogGoesToAFileAndHealthcheckAsks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	s := prepare(t)
	s.Flags = []string{"--resolver", "203.0.113.53"}
	config := filepath.Join(s.Dir, "exeatd.toml")
	written := "control = " + strconv.Quote(s.Socket) + "\nlog = " + strconv.Quote(file) + "\nallow = [\"203.0.113.7:7\"]\nname = \"from-file\"\n"
	if err := os.WriteFile(config, []byte(written), 0o644); err != nil {
		t.Fatal(err)
	}
	s.Env = []string{"EXEAT_CONFIG=" + config, "EXEAT_NAME=from-env"}
	health := func() (string, error) {
		cmd := exec.Command(binary, "healthcheck", "--control", s.Socket)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := health(); err == nil {
		t.Errorf("healthy before it runs: %s", out)
	}
	s.Begin(t)
	s.AwaitReady(t)
	if out, err := health(); err != nil {
		t.Errorf("healthcheck: %v: %s", err, out)
	}
	status, err := s.Status(t.Context())
	if err != nil || status.Name != "from-env" {
		t.Errorf("name %q, %v; want the environment's", status.Name, err)
	}
	s.echoes(t, "203.0.113.7:7")
	s.refused(t, "tcp", "203.0.113.66:22")
	lab.Eventually(t, "lines in the file", func() bool {
		data, err := os.ReadFile(file)
		return err == nil && bytes.Contains(data, []byte(`"verdict":"deny"`))
	})
	s.stop(t)
	data, err := os.ReadFile(file)
	if err != nil || !bytes.HasSuffix(data, []byte("}\n")) {
		t.Errorf("the log ends %q, %v", lab.Tail(string(data), 50), err)
	}
	if s.Stdout.String() != "" {
		t.Errorf("standard output: %s", s.Stdout.String())
	}
}
