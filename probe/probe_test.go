//go:build linux

package probe

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/require"
)

func TestEveryCaseIsOfARowAndSaysWhatItExpects(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if _, known := RowOf(c.ID); !known {
			t.Errorf("%s %s: there is no such row", c.ID, c.Attack)
		}
		if c.Attack == "" || c.Expected == "" || c.try == nil {
			t.Errorf("%+v is not whole", c)
		}
		if key := c.ID + c.Attack; seen[key] {
			t.Errorf("%s %s: listed twice", c.ID, c.Attack)
		} else {
			seen[key] = true
		}
	}
}

func TestOnlyTheCasesAskedForAreTried(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		want    func(Case) bool
	}{
		"all":                  {Options{}, func(Case) bool { return true }},
		"one row":              {Options{IDs: []string{"B04"}}, func(c Case) bool { return c.ID == "B04" }},
		"what disturbs nobody": {Options{Safe: true}, func(c Case) bool { return !c.Disturbs }},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.options.selected()
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			for _, c := range Cases() {
				if test.want(c) {
					want++
				}
			}
			if len(got) != want || want == 0 {
				t.Errorf("%d cases, want %d", len(got), want)
			}
		})
	}
	if _, err := Run(t.Context(), Options{IDs: []string{"B99"}}); err == nil || !strings.Contains(err.Error(), "B99") {
		t.Errorf("error %v, want the number that is not of the catalogue", err)
	}
}

// TestSilenceProvesNothing: in a namespace without any enforcement, and without
// a way out, no case may claim that something was held back by the enforcement.
func TestSilenceProvesNothing(t *testing.T) {
	if !isolated(t) {
		return
	}
	line(t, "ip link set lo up; ip link add eth0 type veth peer name far0; ip addr add 198.51.100.2/24 dev eth0; ip link set eth0 up; ip link set far0 up; ip route add default via 198.51.100.1; ip neigh add 198.51.100.1 lladdr 02:00:00:00:00:01 dev eth0")
	began := time.Now()
	report, err := Run(t.Context(), Options{IDs: []string{"B02", "B03", "B04", "B05", "B08", "B12", "B22", "B23"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Cases {
		missing := strings.Contains(f.Seen, "not supported")
		if f.Verdict == Held && !missing && !strings.Contains(f.Attack, "metadata") {
			t.Errorf("%s %s is held (%s), and nothing holds it", f.ID, f.Attack, f.Seen)
		}
		if f.Verdict == NotProven && f.Why == "" {
			t.Errorf("%s %s is not proven, and does not say why", f.ID, f.Attack)
		}
	}
	t.Logf("%d cases took %s", len(report.Cases), time.Since(began))
}

func TestACaseIsHeldByWhatTheKernelSays(t *testing.T) {
	if !isolated(t) {
		return
	}
	nft := require.Tool(t, "nft")
	line(t, "ip link set lo up; ip link add eth0 type veth peer name far0; ip addr add 198.51.100.2/24 dev eth0; ip link set eth0 up; ip link set far0 up; ip route add default via 198.51.100.1; ip neigh add 198.51.100.1 lladdr 02:00:00:00:00:01 dev eth0; sysctl -qw net.ipv4.ping_group_range='0 0'")
	line(t, nft+` 'table inet t { chain out { type filter hook output priority 0; policy drop; oif lo accept; meta l4proto tcp reject with tcp reset; reject with icmpx admin-prohibited; }; }; table netdev t { chain e { type filter hook egress device eth0 priority 0; policy drop; }; }'`)
	report, err := Run(t.Context(), Options{IDs: []string{"B01", "B04", "B05", "B08", "B09", "B22", "B23"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Cases {
		excused := strings.Contains(f.Why, "kernel does not have it") || strings.Contains(f.Attack, "IPv6") || strings.Contains(f.Seen, "no way there")
		if f.Verdict != Held && !excused {
			t.Errorf("%s %s: %s, %s (%s); want it held", f.ID, f.Attack, f.Verdict, f.Seen, f.Why)
		}
	}
}

func TestFilesThatWereRewrittenAreAsBefore(t *testing.T) {
	dir := t.TempDir()
	a, b := dir+"/a", dir+"/b"
	for _, path := range []string{a, b} {
		if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	restore, err := rewrite(map[string]string{a: "after", b: "after, and longer"})
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, a) + read(t, b); got != "afterafter, and longer" {
		t.Errorf("rewritten to %q", got)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	if _, err := rewrite(map[string]string{a: "x", b: "x", dir + "/none": "x"}); err == nil {
		t.Error("a file that is not there was rewritten")
	}
	if got := read(t, a) + read(t, b); got != "beforebefore" {
		t.Errorf("put back as %q", got)
	}
}

func TestTablesOfProcAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"00000000000000000000000001000000:0035": "[::1]:53",
		"B80D0120000000000000000002000000:01BB": "[2001:db8::2]:443",
	} {
		if got, ok := parseHexAddrPort(text); !ok || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for _, text := range []string{"", ":", "0100007F", "01:1F90", "0100007F:1F90F", "zz00007F:1F90"} {
		if got, ok := parseHexAddrPort(text); ok {
			t.Errorf("%q is read as %s", text, got)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// isolated runs the calling test again in fresh namespaces, and returns true
// there.
func isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideVariable) != "" {
		return true
	}
	require.UserNamespaces(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in a namespace: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

func line(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("/bin/sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
