package firewall

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestOnlyAContainersGroupIsTrustedUnseen(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for path, want := range map[string]bool{
		"/docker/" + id:                                   true,
		"/system.slice/docker-" + id + ".scope":           true,
		"/machine.slice/libpod-" + id + ".scope":          true,
		"/kubepods/besteffort/pod1/" + id:                 true,
		"/kubepods.slice/cri-containerd-" + id + ".scope": true,
		"/user.slice/user-1000.slice/session-3.scope":     false,
		"/system.slice/docker.service":                    false,
		"/docker/" + id + "/inner":                        false,
		"/":                                               false,
		"":                                                false,
	} {
		if got := madeForContainer(path); got != want {
			t.Errorf("%q: %v, want %v", path, got, want)
		}
	}
	if got := groupPath("4:memory:/x\n0::/a b/c\n"); got != "/a b/c" {
		t.Errorf("path %q", got)
	}
}

// aloneVariable has the test binary say what alone thinks of its group.
const aloneVariable = "EXEAT_FIREWALL_ALONE"

func TestAGroupThatIsSharedTellsNobodyApart(t *testing.T) {
	if os.Getenv(aloneVariable) != "" {
		s, err := newProbeSocket()
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		id, err := s.cgroup()
		if err != nil {
			t.Fatal(err)
		}
		err = alone(id)
		fmt.Printf("\nalone: shared=%v %v\n", errors.Is(err, errShared), err)
		return
	}
	if !grouped(t) {
		return
	}
	ask := func(flags uintptr) string {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestAGroupThatIsSharedTellsNobodyApart$", "-test.v")
		cmd.Env = append(os.Environ(), aloneVariable+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		_, said, _ := strings.Cut(string(out), "\nalone: ")
		said, _, _ = strings.Cut(said, "\n")
		return said
	}
	// Beside us in our PID namespace: one of ours.
	if got := ask(0); got != "shared=false <nil>" {
		t.Errorf("a group whose processes we know: %s", got)
	}
	// In a PID namespace of its own, as a container's, with us beside it unseen.
	if got := ask(syscall.CLONE_NEWPID); !strings.HasPrefix(got, "shared=true") {
		t.Errorf("a group with somebody else in it: %s", got)
	}
}
