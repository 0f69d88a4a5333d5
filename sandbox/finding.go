package sandbox

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Finding is something about a container that would undo the guard (bypass.md
// B34, B44, B71), and what to do about it.
type Finding struct {
	Container string `json:"container"`
	What      string `json:"what"`
	Remedy    string `json:"remedy"`
}

// String is the finding in one line.
func (f Finding) String() string { return f.Container + ": " + f.What + "; " + f.Remedy }

// Look is what a container is looked at for.
type Look struct {
	// Joined says that the container has no network namespace of its own but that
	// of our sidecar.
	Joined bool
	// NetRaw says that the sidecar holds what NET_RAW could go round.
	NetRaw bool
	// Userns is the sidecar's user namespace mode, and State where its state lies,
	// for a container that joined one.
	Userns, State string
	// Beside are the containers of the same sandbox.
	Beside []Container
}

// Findings gives everything about a container that would undo the guard.
func Findings(c Container, look Look) []Finding {
	var found []Finding
	find := func(what, remedy string) {
		found = append(found, Finding{Container: c.Name, What: what, Remedy: remedy})
	}
	if c.Privileged {
		find("it is privileged, so it can change the rules", "start it without --privileged")
	}
	for _, capability := range undoing() {
		if !c.Privileged && c.Has(capability.name) {
			find(fmt.Sprintf("it has the capability %s, %s", capability.name, capability.why),
				"start it with --cap-drop "+capability.name)
		}
	}
	if c.Has("NET_RAW") && !look.NetRaw && !c.Privileged {
		find("it has the capability NET_RAW, which the sidecar was told it has not", "start it with --cap-drop NET_RAW, or the sidecar with --sandbox-net-raw=yes")
	}
	if !look.Joined {
		networkFindings(c, find)
	}
	if c.PIDMode != "" && c.PIDMode != "private" {
		find(fmt.Sprintf("it shares the PID namespace %q, where others' processes can be robbed of their sockets", c.PIDMode),
			"start it without --pid")
	}
	if c.IPCMode == "host" {
		find("it shares the IPC namespace and the shared memory of the host, whose programs hear it there", "start it without --ipc host")
	}
	if look.sharesIPC(c) {
		find(fmt.Sprintf("it shares the IPC namespace and the shared memory %q with others than this sandbox's", c.IPCMode), "start it without --ipc")
	}
	if c.Unmasked && !c.Privileged {
		find("it may write to /proc/sys, the host's core pattern and the network's settings among them", "start it without --security-opt systempaths=unconfined (or unmask)")
	}
	if c.Unfiltered && !c.Privileged {
		find("its system calls are not filtered: the host's resolver is asked for names by the kernel's key service, and vsock reaches the hypervisor", "start it without --security-opt seccomp=unconfined")
	}
	if len(c.DeviceRules) > 0 {
		find(fmt.Sprintf("it may open devices that it makes itself (%s), disks of the host's among them", strings.Join(c.DeviceRules, ", ")), "start it without --device-cgroup-rule")
	}
	// Who made a user namespace has every capability in it, whatever was dropped
	// (user_namespaces(7)): in the sidecar's that is root outside.
	if outside := c.Userns == "" || c.Userns == "host"; look.Joined && outside && c.Userns != look.Userns && (c.Userns == "host" || look.Userns != "host") {
		find(fmt.Sprintf("its user namespace (%q) is outside of the sidecar's (%q), whose rules its root can remove", c.Userns, look.Userns), "start both with the same --userns")
	}
	for _, m := range slices.Concat(c.Mounts, rootMounts(c, find), volumeMounts(c, find)) {
		if look.State != "" && m.Source == look.State {
			find("the sidecar's state is mounted at "+m.Destination+", where what is in force after a restart can be written", "start it without that volume (--volumes-from?)")
		}
		if why := mounted(m.Source); why != "" {
			find(fmt.Sprintf("%s is mounted at %s, %s", m.Source, m.Destination, why), "start it without that mount")
		}
	}
	for _, d := range c.Devices {
		if why := device(d); why != "" {
			find(fmt.Sprintf("it has the device %s, %s", d, why), "start it without --device "+d)
		}
	}
	return found
}

// sharesIPC says whether a container has the IPC namespace of one that is neither the
// host nor of the same sandbox.
func (l Look) sharesIPC(c Container) bool {
	other, joined := strings.CutPrefix(c.IPCMode, "container:")
	if !joined {
		return strings.HasPrefix(c.IPCMode, "ns:")
	}
	return !slices.ContainsFunc(l.Beside, func(b Container) bool { return means(b, other) })
}

// rootMounts gives a root directory of the host's as a mount.
func rootMounts(c Container, find func(what, remedy string)) []Mount {
	switch {
	case c.Rootfs == "":
		return nil
	case !path.IsAbs(c.Rootfs): // Podman keeps it as it was written
		find(fmt.Sprintf("its root directory %q (--rootfs) is relative, so that where it lies is not known", c.Rootfs), "start it with --rootfs and an absolute path")
		return nil
	}
	return []Mount{{c.Rootfs, "/"}}
}

// volumeMounts gives the directories of the host's that a container's volumes are,
// as mounts, and finds what else they hold of it.
func volumeMounts(c Container, find func(what, remedy string)) []Mount {
	var mounts []Mount
	for _, v := range c.Volumes {
		if why := v.unknown(); why != "" {
			find(fmt.Sprintf("what the volume %s at %s holds is not known: %s", v.Name, v.Destination, why), "start it without that volume")
		}
		if disk := v.disk(); disk != "" {
			find(fmt.Sprintf("the volume %s at %s is %s, a disk or file system of the host's", v.Name, v.Destination, disk), "start it without that volume")
		}
		for _, directory := range v.directories() {
			// With the volume's name, for nobody has written this path in a mount.
			mounts = append(mounts, Mount{directory, v.Destination + " by the volume " + v.Name})
		}
	}
	return mounts
}

func networkFindings(c Container, find func(what, remedy string)) {
	switch owner := c.Owner(); {
	case c.Network == "host":
		find("it is in the host's network, where the rules would bind the host", "start it with a network of its own (--network bridge)")
	case c.Network == "none":
		find("it has no network (--network none), so there is nothing to guard", "leave it as it is, or start it with --network bridge")
	case owner != "":
		find("it is in the network namespace of container "+short(owner), "attach to that container instead")
	case strings.HasPrefix(c.Network, "ns:"):
		find("it is in a network namespace that the engine did not make ("+c.Network+")", "start it with a network of its own (--network bridge)")
	}
}

// short is an id as engines print it; a name stays as it is.
func short(id string) string {
	if len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
		return id[:12]
	}
	return id
}

type capability struct{ name, why string }

// undoing are the capabilities with which the guard can be undone from inside.
func undoing() []capability {
	return []capability{
		{"NET_ADMIN", "with which it can remove the rules"},
		{"SYS_ADMIN", "with which it can enter other namespaces"},
		{"BPF", "with which it can load programs that see and change packets"},
		{"SYS_MODULE", "with which it can load kernel modules"},
		{"SYS_RAWIO", "with which it can write to the machine's memory"},
		{"DAC_READ_SEARCH", "with which it can open the host's files by handle"},
	}
}

// forbidden are places on the host that lead out of a sandbox, each with why.
func forbidden() map[string]string {
	const engine = "through which it can start containers that are not guarded"
	const storage = "where the engine keeps every container's files, the sidecar's among them"
	const ours = "where exeat's control sockets are"
	const bus = "through which it can have the host run programs"
	return map[string]string{
		"/run/docker.sock": engine, "/run/docker": engine, "/run/podman": engine, "/run/containerd": engine,
		"/run/crio": engine, "/run/cri-dockerd.sock": engine, "/run/buildkit": engine, "/run/libpod": engine,
		"/run/dbus": bus, "/run/systemd": bus, "/run/user": bus,
		"/var/lib/docker": storage, "/var/lib/containers": storage, "/var/lib/containerd": storage,
		"/run/exeat": ours, "/proc": "the host's processes", "/sys": "the host's devices and cgroups", "/dev": "the host's devices",
	}
}

// engineVolumes are where engines keep volumes; a volume is a mount of a
// directory below the engine's storage, and none of its other files is in it.
func engineVolumes(source string) bool {
	return strings.Contains(source, "/volumes/") && path.Base(source) == "_data"
}

// mounted says what is wrong with mounting source, "" for nothing. A directory
// is wrong too where something forbidden lies below it.
func mounted(source string) string {
	if !path.IsAbs(source) || engineVolumes(source) {
		return ""
	}
	source = path.Clean(source)
	if rest, ok := strings.CutPrefix(source, "/var/run"); ok && (rest == "" || rest[0] == '/') {
		source = "/run" + rest
	}
	if strings.HasSuffix(source, "docker.sock") || strings.HasSuffix(source, "podman.sock") || strings.HasSuffix(source, "containerd.sock") {
		return "through which it can start containers that are not guarded"
	}
	if source == "/" {
		return "which is the host's whole file system"
	}
	places := forbidden()
	for _, place := range sortedKeys(places) {
		switch {
		case source == place, strings.HasPrefix(source, place+"/"):
			if place == "/dev" && source != "/dev" || place == "/proc" && source != "/proc" || place == "/sys" && source != "/sys" {
				continue // a file of these is no way out by itself
			}
			return places[place]
		case strings.HasPrefix(place, source+"/"):
			return "which holds " + place + ", " + places[place]
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// device says what is wrong with giving a device, "" for nothing.
func device(name string) string {
	base := path.Base(name)
	switch {
	case slices.Contains([]string{"/dev", "/dev/block"}, path.Clean(name)):
		return "which are all of the host's, its disks among them"
	case base == "vhost-vsock":
		return "through which it can speak to services of the host's"
	case strings.HasPrefix(name, "/dev/mapper/"), strings.HasPrefix(name, "/dev/disk/"), strings.HasPrefix(base, "mmcblk"),
		strings.HasPrefix(base, "loop"), strings.HasPrefix(base, "md") && strings.Trim(base[2:], "0123456789") == "":
		return "which is a disk of the host's"
	case slices.Contains([]string{"mem", "kmem", "port"}, base):
		return "which is the machine's memory"
	case strings.HasPrefix(base, "sd"), strings.HasPrefix(base, "vd"), strings.HasPrefix(base, "nvme"),
		strings.HasPrefix(base, "xvd"), strings.HasPrefix(base, "dm-"), base == "mapper", base == "disk",
		strings.HasPrefix(base, "sg") && strings.Trim(base[2:], "0123456789") == "", strings.HasPrefix(base, "nbd"),
		strings.HasPrefix(base, "rbd"), strings.HasPrefix(base, "zd"), strings.HasPrefix(base, "pmem"),
		strings.HasPrefix(base, "drbd"), strings.HasPrefix(base, "bcache"), strings.HasPrefix(base, "dasd"):
		return "which is a disk of the host's"
	}
	return ""
}
