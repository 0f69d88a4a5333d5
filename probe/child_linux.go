package probe

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// childRules has the child make a table.
	childRules = "rules"
	// childRefused is its exit status where the kernel refused.
	childRefused = 10
)

// Child is what a process does that Options.Child has started; it gives the exit
// status.
func Child(args []string) int {
	if len(args) != 1 || args[0] != childRules {
		fmt.Fprintln(os.Stderr, "probe: a child without a task")
		return 2
	}
	a := &attempt{ctx: context.Background()}
	err := a.netlinkCall(unix.NETLINK_NETFILTER, tableRequest(unix.NFT_MSG_NEWTABLE))
	if err == nil {
		err = a.netlinkCall(unix.NETLINK_NETFILTER, tableRequest(unix.NFT_MSG_DELTABLE))
		fmt.Println("a table was made; its removal:", err)
		return 0
	}
	fmt.Println(err)
	if errnoOf(err) == unix.EPERM {
		return childRefused
	}
	return 1
}

// runNested starts the command as root of a new user namespace.
func runNested(ctx context.Context, line []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	return out.Bytes(), err
}
