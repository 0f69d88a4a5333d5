package require

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// UserNamespaces skips the test where this process may not make a user and a
// network namespace (a sysctl, AppArmor or a container's seccomp forbids it).
func UserNamespaces(t testing.TB) {
	t.Helper()
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		Skip(t, "user namespaces are refused: "+err.Error())
	}
}
