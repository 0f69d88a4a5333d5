//go:build linux

package bypass

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/probe"
)

// openRows are the rows whose cases send something that a far side can count, or
// take something that the enforcement must hold.
func openRows() []string {
	return rowsOf(func(id string) bool {
		names := slices.Contains([]string{"B16", "B18", "B21"}, id) // no matter of packets
		return (id < "B30" || id == "B38" || id == "B43") && !names
	})
}

// guardedRows are those that are tried where a sidecar stands: also what attacks
// the sidecar itself, and names and protocols.
func guardedRows() []string {
	// B50 and B51 take an allowed name, which the sealed sandboxes of these tests
	// have; B46 the container's own files; B70 and on are about a host.
	return rowsOf(func(id string) bool {
		return id < "B70" && !slices.Contains([]string{"B18", "B46", "B50", "B51"}, id)
	})
}

// rowsOf are the rows of cases.
func rowsOf(wanted func(id string) bool) []string {
	var rows []string
	for _, c := range probe.Cases() {
		if wanted(c.ID) && !slices.Contains(rows, c.ID) {
			rows = append(rows, c.ID)
		}
	}
	return rows
}

// notShown are cases that an open kernel stops by itself, or has nothing to show
// of. They are tried all the same: a rule of ours could undo that.
var notShown = map[string]string{
	"B14 a spoofed source to a closed port of 127.0.0.1": "nothing leaves from 127.0.0.1",
	"B14 a spoofed source to our resolver":               "there is no resolver where nothing is enforced",
	"B38 secrets in the marks that /proc shows":          "there are no marks where nothing is enforced",
	"B43 a forged answer of the engine's DNS":            "it goes to a local port",
	"B43 127.0.0.11:53 bound, to answer our resolver":    "it goes to a local port",
	"B20 the metadata service by its name":               "the far side echoes, and knows no names",
}

// neverProven are cases that this kernel may have nothing to try with.
var neverProven = map[string]bool{
	"B04 an SCTP socket": true,
}

// silent are cases whose denial makes no sound: that nothing left is told by the
// link's counters alone, in which the sidecar's own packets may be counted too.
var silent = map[string]bool{
	"B04 a raw first fragment":                    true,
	"B04 a raw later fragment":                    true,
	"B15 a frame on lo for the kernel to forward": true,
	"B17 a foreign destination on lo":             true,
}

// shown says in which capability set a case got out with nothing enforced.
type shown map[string]string

// TestPacketsUnderEachCapabilitySet attacks out of a namespace that a sidecar
// shares. No marker may arrive; with the rules off each must, under one set at
// least; and where a set cannot even try, the error says so.
func TestPacketsUnderEachCapabilitySet(t *testing.T) {
	if set, ok := inLabOf(); ok {
		inLab(t, set)
		return
	}
	if !outsideWorld() {
		return
	}
	require.Root(t)
	root := cgroup2(t)
	all := make([]shown, len(capabilitySets()))
	t.Run("sets", func(t *testing.T) {
		for i, set := range capabilitySets() {
			t.Run(set.name, func(t *testing.T) {
				t.Parallel()
				all[i] = runLab(t, root, set, "TestPacketsUnderEachCapabilitySet")
			})
		}
	})
	for _, c := range probe.Cases() {
		key := c.ID + " " + c.Attack
		got := slices.ContainsFunc(all, func(s shown) bool { return s[key] != "" && s[key] != missing })
		absent := slices.ContainsFunc(all, func(s shown) bool { return s[key] == missing })
		if !got && !absent && slices.Contains(openRows(), c.ID) && notShown[key] == "" {
			t.Errorf("%s got out under no capability set with nothing enforced: it proves nothing", key)
		}
	}
}

// missing marks what this kernel lacks.
const missing = "missing"

const shownLine = "shown: "

// runLab runs a laboratory in a process of its own, with the control group of the
// sidecar, and gives what got out of it while nothing was enforced.
func runLab(t *testing.T, root string, set capabilitySet, test string) shown {
	t.Helper()
	ours, theirs := makeGroup(t, root, "ours"), makeGroup(t, root, "theirs")
	dir, err := os.Open(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), labVariable+"="+set.name, groupVariable+"="+theirs)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL,
		// A PID namespace too: the laboratories run beside each other, and each sandbox
		// sees the processes of its own sidecar.
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
	var s shown
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, shownLine); ok {
			if err := json.Unmarshal([]byte(text), &s); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// inLabOf is true in the laboratory of a set, which this test's outer process
// starts: there it says which.
func inLabOf() (capabilitySet, bool) {
	for _, set := range capabilitySets() {
		if set.name == os.Getenv(labVariable) {
			return set, true
		}
	}
	return capabilitySet{}, false
}

// inLab attacks with nothing enforced, and then under two policies.
func inLab(t *testing.T, set capabilitySet) {
	l := newLab(t, set)
	s := shown{}
	for _, r := range l.attack("open", openRows()) {
		key := r.ID + " " + r.Attack
		switch {
		case r.arrived > 0 || r.Verdict == probe.Leak:
			s[key] = r.Seen
		case strings.Contains(r.Why, "kernel does not have it"):
			s[key] = missing
		}
		t.Logf("open: %s: %s, %d frames", key, r.Seen, r.arrived)
		if r.arrived > 0 && r.Verdict == probe.Held {
			t.Errorf("%s arrived, and was taken for held: %s", key, r.Seen)
		}
		wantErrno(t, set, r)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s%s\n", shownLine, text)
	for name, document := range map[string]string{
		"allowlist":  fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":[%q,%q]}`, allowed4, allowed6),
		"no-network": `"no-network"`,
	} {
		l.enforce(document)
		for _, r := range l.attack(name, guardedRows()) {
			if r.arrived > 0 || r.Verdict == probe.Leak {
				t.Errorf("%s: %s %s: %d frames arrived (%s: %s)", name, r.ID, r.Attack, r.arrived, r.Verdict, r.Seen)
			}
			if r.Verdict == probe.NotProven && !neverProven[r.ID+" "+r.Attack] && !silent[r.ID+" "+r.Attack] {
				t.Errorf("%s: %s %s is not proven: %s (%s)", name, r.ID, r.Attack, r.Seen, r.Why)
			}
			t.Logf("%s: %s %s: %s, %s", name, r.ID, r.Attack, r.Verdict, r.Seen)
			wantErrno(t, set, r)
		}
	}
}

// wantErrno holds that what takes NET_RAW is refused without it, by EPERM.
func wantErrno(t *testing.T, set capabilitySet, r result) {
	t.Helper()
	if !strings.Contains(r.Expected, "without NET_RAW") || strings.Contains(r.Seen, "not supported") {
		return
	}
	opened, ok := strings.CutSuffix(r.Seen, ": operation not permitted")
	refused := ok && (strings.HasPrefix(opened, "socket(") || strings.HasPrefix(opened, "setsockopt("))
	if refused == set.raw() {
		t.Errorf("%s %s with %s: %s; want EPERM of what takes NET_RAW: %v", r.ID, r.Attack, set.name, r.Seen, !set.raw())
	}
}

func cgroup2(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	require.Skip(t, "no cgroup2 file system is mounted")
	return ""
}

func makeGroup(t *testing.T, root, name string) string {
	t.Helper()
	set := strings.NewReplacer("/", "-", "'", "").Replace(t.Name())
	dir := filepath.Join(root, fmt.Sprintf("exeat-bypass-%d-%s-%s", os.Getpid(), set, name))
	if err := os.Mkdir(dir, 0o755); err != nil {
		require.Skip(t, "no control group can be made: "+err.Error())
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
