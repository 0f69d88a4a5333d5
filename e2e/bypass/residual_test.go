//go:build linux

package bypass

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

// TestResidualsAreAsDocumented: what SECURITY.md says gets through does, so that
// nobody takes it for stopped.
func TestResidualsAreAsDocumented(t *testing.T) {
	if !inWorld(t) {
		return
	}
	curl := require.Tool(t, "curl")
	for _, u := range users() {
		t.Run("B66 fronting behind an allowed server name, as "+u.name, func(t *testing.T) {
			o := sealed(t, u, []string{"--allow", "cdn-a.test"}, curl, "-skS", "-H", "Host: cdn-b.test", "https://cdn-a.test/")
			if !strings.Contains(o.stdout, "hello from cdn-b.test") {
				t.Errorf("%+v", o)
			}
			// In clear, and on another connection, the name decides.
			o = sealed(t, u, []string{"--allow", "cdn-a.test"}, curl, "-sS", "-H", "Host: cdn-b.test", "http://cdn-a.test/")
			if !strings.Contains(o.stdout, "exeat: cdn-b.test:80 denied") {
				t.Errorf("%+v", o)
			}
		})
		t.Run("B67 whatever an allowed host will carry, as "+u.name, func(t *testing.T) {
			agent := filepath.Join(bin(), "agent")
			tunnel := []string{"/bin/sh", "-c", "printf tunnelled | " + agent + " raw pypi.test:7 half"}
			if o := sealed(t, u, []string{"--allow", "pypi.test"}, tunnel...); !strings.Contains(o.stdout, "tunnelled") {
				t.Errorf("%+v", o)
			}
			// A port in the target narrows it.
			if o := sealed(t, u, []string{"--allow", "pypi.test:443"}, tunnel...); strings.Contains(o.stdout, "tunnelled") {
				t.Errorf("the port was not held: %+v", o)
			}
		})
		t.Run("B77 files that may run outside later, as "+u.name, func(t *testing.T) {
			path := filepath.Join(bin(), "left")
			if err := os.WriteFile(path, nil, 0o666); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
			sealed(t, u, []string{"--mode", "no-network"}, "/bin/sh", "-c", "echo left > "+path)
			if data, err := os.ReadFile(path); err != nil || string(data) != "left\n" {
				t.Errorf("%q, %v", data, err)
			}
		})
	}
}

// TestRewrittenResolverFilesChangeNothing is B46: the name's own address is
// dialled, and the resolver that the file names is not asked.
func TestRewrittenResolverFilesChangeNothing(t *testing.T) {
	if !inWorld(t) {
		return
	}
	curl := require.Tool(t, "curl")
	// Never the host's own files: --add-host mounts one for the sandbox.
	const rewrite = "grep -q ' /etc/hosts ' /proc/self/mountinfo && grep -q ' /etc/resolv.conf ' /proc/self/mountinfo || exit 9; " +
		"echo '203.0.113.66 pypi.test' > /etc/hosts; echo 'nameserver 203.0.113.66' > /etc/resolv.conf; "
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			seen := len(world.Seen())
			policy := []string{"--allow", "pypi.test", "--add-host", "other.test=203.0.113.11"}
			o := sealed(t, u, policy, "/bin/sh", "-c", rewrite+curl+" -sS http://pypi.test/hosts-were-rewritten")
			if o.status != 0 {
				t.Errorf("%+v", o)
			}
			came := false
			for _, v := range world.Seen()[seen:] {
				came = came || v.Path == "/hosts-were-rewritten"
				if atEvil(v) {
					t.Errorf("the address of the file was dialled: %+v", v)
				}
			}
			if !came {
				t.Error("the request did not arrive at the name's own address")
			}
		})
	}
}

// TestAnAllowedNameDoesNotLeadToASpecialAddress is B64.
func TestAnAllowedNameDoesNotLeadToASpecialAddress(t *testing.T) {
	if !inWorld(t) {
		return
	}
	curl := require.Tool(t, "curl")
	seen := len(world.Seen())
	for _, name := range []string{"intranet.test", "metadata.test", "rebind.test", "alias-to-evil.test"} {
		policy := []string{"--allow", name, "--deny", evilName}
		// Asked by its name, and shown to an address of the client's choice.
		for _, args := range [][]string{
			{"http://" + name + "/"},
			{"--resolve", name + ":80:10.99.0.5", "http://" + name + "/"},
			{"--resolve", name + ":443:169.254.169.254", "-k", "https://" + name + "/"},
		} {
			if o := sealed(t, users()[0], policy, append([]string{curl, "-sS"}, args...)...); strings.Contains(o.stdout, "hello") {
				t.Errorf("%s %v: %+v", name, args, o)
			}
		}
	}
	if o := sealed(t, users()[0], []string{"--allow", "mixed.test"}, curl, "-sS", "http://mixed.test/"); !strings.Contains(o.stdout, "hello from mixed.test") {
		t.Errorf("the address beside the special one was not tried: %+v", o)
	}
	for _, v := range world.Seen()[seen:] {
		if strings.HasPrefix(v.To, "10.99.") || strings.HasPrefix(v.To, "169.254.") || atEvil(v) {
			t.Errorf("%+v was reached", v)
		}
	}
}

// TestWithNETRAWTheEnginesDNSIsNeverAskedByUDP is B45: with NET_RAW the answers of
// the engine's DNS could be forged over UDP, so that it is asked over TCP alone.
func TestWithNETRAWTheEnginesDNSIsNeverAskedByUDP(t *testing.T) {
	if !outsideWorld() {
		return
	}
	in := firewall.JoinedInput{
		V4: firewall.Ports{TCP: 1, DNS: 2}, Own: firewall.Own{Level: 1, Cgroup: 1 << 40},
		Secrets: firewall.Secrets{Mark: 1, Priority: 2}, Policy: policy.Compile(policy.Document{Mode: policy.ModeNoNetwork}, policy.Options{}),
		Links: []string{"eth0"}, EngineDNS: true,
	}
	const rule = "ip daddr 127.0.0.11 meta l4proto udp drop"
	for _, raw := range []bool{true, false} {
		in.NetRaw = raw
		if got := strings.Contains(firewall.JoinedRuleset(in).String(), rule); got != raw {
			t.Errorf("NET_RAW %v: the ruleset drops our UDP to the engine's DNS: %v", raw, got)
		}
	}
}
