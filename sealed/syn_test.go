//go:build linux

package sealed

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/firewall"
	"github.com/exeat/exeat/policy"
)

func compile(t *testing.T, document string) *policy.Compiled {
	t.Helper()
	d, _, err := policy.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return policy.Compile(d, policy.Options{Generation: 1})
}

func TestConnectionsThatNothingCanAllowAreRefusedAtTheSYN(t *testing.T) {
	const (
		target  = "203.0.113.5:8443"
		subnet  = "198.51.100.77:22"
		named   = "203.0.113.9:22"
		other   = "203.0.113.9:23"
		web     = "203.0.113.10:443"
		six     = "[2001:db8::5]:5432"
		unknown = "203.0.113.66:25"
	)
	all := []string{target, subnet, named, other, web, six, unknown}
	doc := `{"network_mode":"allowlist","allowed_hosts":["203.0.113.5:8443","198.51.100.0/24","[2001:db8::/64]:5432","git.example.test:22"]}`
	for _, c := range []struct {
		what     string
		document string
		strict   bool
		named    bool
		pass     []string
	}{
		{"allowlist: targets, what was attributed, and the web, which is read", doc, false, true, []string{target, subnet, named, web, six}},
		{"allowlist, before the name was asked for", doc, false, false, []string{target, subnet, web, six}},
		{"allowlist, strictly", doc, true, true, []string{target, subnet, named, six}},
		{"public: everything is the proxy's to judge", `"public"`, false, false, all},
		{"no network: so that the reason can be told", `"no-network"`, false, false, all},
	} {
		t.Run(c.what, func(t *testing.T) {
			e := begin(t, probe("tcp", all...))
			e.Kernel().SetStrict(c.strict)
			p := compile(t, c.document)
			if err := e.Kernel().Swap(t.Context(), p, nil); err != nil {
				t.Fatal(err)
			}
			if c.named {
				err := e.Kernel().Attribute(t.Context(), []netip.Addr{netip.MustParseAddr("203.0.113.9")}, p.Openings("git.example.test"), time.Minute)
				if err != nil {
					t.Fatal(err)
				}
			}
			got := e.finish(t)
			for _, addr := range all {
				passed := strings.Contains(got, "got "+addr+"\n")
				if want := slices.Contains(c.pass, addr); passed != want {
					t.Errorf("%s: passed %v, want %v", addr, passed, want)
				}
				if !passed && !strings.Contains(got, addr+": connect: connection refused") {
					t.Errorf("%s is not refused by a reset: %s", addr, got)
				}
			}
			if len(c.pass) < len(all) {
				e.wantRefused(t, firewall.SealedUnlisted, unix.IPPROTO_TCP, unknown)
			}
		})
	}
}

func TestASwapReplacesWhatWasAttributed(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// One address for each line that comes in.
	spec := shell(`while read -r addr; do ` + probeVariable + `=tcp "$0" "$addr"; done`)
	spec.Args, spec.Stdin = append(spec.Args, os.Getenv(binaryVariable)), r
	e := begin(t, spec)
	const addr = "203.0.113.9:22"
	narrow := compile(t, `{"network_mode":"allowlist","allowed_hosts":["other.example.test:22"]}`)
	wide := compile(t, `{"network_mode":"allowlist","allowed_hosts":["git.example.test:22"]}`)
	if err := e.Release(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	steps := 0
	try := func(want string) {
		t.Helper()
		if _, err := io.WriteString(w, addr+"\n"); err != nil {
			t.Fatal(err)
		}
		steps++
		deadline := time.Now().Add(30 * time.Second)
		for {
			b, err := os.ReadFile(e.out.Name())
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(string(b)), "\n")
			if len(lines) == steps && lines[steps-1] != "" {
				contains(t, lines[steps-1], want)
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no answer: %q", b)
			}
			time.Sleep(time.Millisecond)
		}
	}
	swap := func(c *policy.Compiled, names ...string) {
		t.Helper()
		err := e.Kernel().Swap(t.Context(), c, func() []firewall.Attributed {
			var out []firewall.Attributed
			for _, name := range names {
				for _, o := range c.Openings(name) {
					out = append(out, firewall.Attributed{Addr: netip.MustParseAddr("203.0.113.9"), Opening: o, Timeout: time.Minute})
				}
			}
			return out
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	swap(narrow, "git.example.test")
	try("connection refused")
	swap(wide, "git.example.test")
	try("got " + addr)
	swap(narrow, "git.example.test")
	try("connection refused")
	swap(compile(t, `"public"`))
	try("got " + addr)
	w.Close()
	if _, err := e.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAnEndedContextChangesNothing(t *testing.T) {
	e := begin(t, shell("true"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Kernel().Swap(ctx, compile(t, `"public"`), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := e.Kernel().Attribute(ctx, nil, nil, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	e.finish(t)
}
