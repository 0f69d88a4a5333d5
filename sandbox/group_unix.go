//go:build unix

package sandbox

import (
	"os/exec"
	"syscall"
)

// apart keeps a command out of the terminal's reach: a Ctrl-C is meant for what
// runs in the sandbox, and not for the stream by which the sandbox is shut after it.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
