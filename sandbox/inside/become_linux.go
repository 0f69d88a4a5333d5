package inside

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// daemon is exeatd in its image.
const daemon = "/exeatd"

// become starts the child that keeps the ready file and makes this process
// exeatd, so that process 1 of the container is the keeper.
func become(args []string) error {
	watcher := exec.Command("/proc/self/exe", harborWatch, harborReady)
	watcher.Args[0] = "harbor-egress"
	watcher.Stderr = os.Stderr
	watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := watcher.Start(); err != nil {
		return fmt.Errorf("start the keeper of the ready file: %w", err)
	}
	return fmt.Errorf("become %s: %w", daemon, syscall.Exec(daemon, append([]string{daemon}, args...), os.Environ()))
}

// again makes this process another of ours.
func again(args ...string) error {
	const self = "/proc/self/exe"
	return fmt.Errorf("start again: %w", syscall.Exec(self, append([]string{"harbor-egress"}, args...), os.Environ()))
}

// renounce gives up every capability, on every thread (capabilities(7)).
func renounce() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0)
	runtime.KeepAlive(&none)
	if errno != 0 {
		return fmt.Errorf("give up our capabilities: %w", errno)
	}
	return nil
}
