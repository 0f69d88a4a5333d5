package sealed

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// namespaceError turns the refusal of a namespace into one that says what to
// change; any other error is returned as it is.
func namespaceError(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case syscall.EPERM, syscall.EACCES, syscall.ENOSPC, syscall.EINVAL, syscall.ENOSYS, syscall.EUSERS:
		cause, remedy := namespaceObstacle(errno)
		return fmt.Errorf("%w: %w: %s; %s", ErrUserNamespaces, errno, cause, remedy)
	}
	return err
}

// obstacle is a setting that forbids namespaces while it has the value.
type obstacle struct{ setting, forbids, remedy string }

const sudoRemedy = "or run exeat as root, or in a container with `docker run`"

// obstacles lists the settings in the order in which they are looked at.
func obstacles() []obstacle {
	list := []obstacle{
		{"kernel.unprivileged_userns_clone", "0", "allow them with `sysctl -w kernel.unprivileged_userns_clone=1`"},
		{
			"kernel.apparmor_restrict_unprivileged_userns", "1",
			"install an AppArmor profile for exeat that says `userns,` (in /etc/apparmor.d), or allow all with `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
		},
	}
	for _, kind := range []string{"user", "net", "mnt", "pid", "ipc", "uts"} {
		name := "user.max_" + kind + "_namespaces"
		list = append(list, obstacle{name, "0", "raise it with `sysctl -w " + name + "=15000`"})
	}
	return list
}

// namespaceObstacle names what stands in the way, and what can be done.
func namespaceObstacle(errno syscall.Errno) (cause, remedy string) {
	for _, o := range obstacles() {
		if value, ok := sysctl(o.setting); ok && value == o.forbids {
			return o.setting + " is " + value, o.remedy + ", " + sudoRemedy
		}
	}
	switch {
	case errno == syscall.ENOSPC || errno == syscall.EUSERS:
		return "a limit on namespaces is reached (user.max_*_namespaces, or 32 of them nested)",
			"raise the limit with sysctl, or end other sandboxes"
	case errno == syscall.EINVAL || errno == syscall.ENOSYS:
		return "the kernel was built without user namespaces (CONFIG_USER_NS)", "use another kernel, " + sudoRemedy
	case seccompFiltered():
		return "a seccomp filter on this process forbids them, as a container's default does",
			"start the container with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`, or guard it from outside with `exeat attach`"
	}
	return "the kernel refuses them (a security module, or a changed root directory)",
		"look for a denial in the kernel log (dmesg), " + sudoRemedy
}

// sysctl reads a setting by its dotted name.
func sysctl(name string) (string, bool) {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return "", false // this kernel has no such setting
	}
	return strings.TrimSpace(string(b)), true
}

// seccompFiltered says whether a filter is on this process (proc(5), Seccomp).
func seccompFiltered() bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			return strings.TrimSpace(value) == "2"
		}
	}
	return false
}
