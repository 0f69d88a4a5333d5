package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Container is what `inspect` says of a container, as far as it concerns us.
type Container struct {
	ID      string
	Name    string
	Image   string // its id
	Labels  map[string]string
	Running bool
	Paused  bool
	// PID is its process 1 as the engine's host numbers it.
	PID int

	// Network is the network mode: "bridge", "none", "host", "container:ID" or the
	// name of a network.
	Network string
	// Networks are those it has an interface in.
	Networks []string
	// PIDMode is empty or "private" where it has a PID namespace to itself.
	PIDMode    string
	IPCMode    string // "host" or "container:ID" where it has another's
	Privileged bool
	// Capabilities is what its root can have, without "CAP_", sorted.
	Capabilities []string
	Mounts       []Mount
	Volumes      []Volume
	// Rootfs is a directory of the host's in an image's place, as it was written.
	Rootfs  string
	Devices []string
	// DeviceRules are those of its device cgroup, beside its devices'.
	DeviceRules []string
	// Unmasked says that /proc/sys and its like are as the host has them.
	Unmasked bool
	// Unfiltered says that no filter holds its system calls.
	Unfiltered bool
	// Userns is the user namespace mode; "" is the engine's default.
	Userns  string
	Restart string
	// DNS are the servers that it was created with (--dns).
	DNS []string
}

// Mount is one file or directory of the host's that a container sees.
type Mount struct{ Source, Destination string }

// Owner gives the container in whose network namespace this one is, by id or
// name; "" where it has its own.
func (c Container) Owner() string {
	owner, joined := strings.CutPrefix(c.Network, "container:")
	if !joined {
		return ""
	}
	return owner
}

// inspected is the part of the engines' `inspect` that both have.
type inspected struct {
	ID    string `json:"Id"`
	Name  string
	Image string
	State struct {
		Running, Paused bool
		Pid             int
	}
	Config struct {
		Labels map[string]string
		// CreateCommand is Podman's own, and the only place where it says some of
		// what was asked for.
		CreateCommand []string
	}
	HostConfig struct {
		NetworkMode, PidMode string
		IpcMode              string
		Privileged           bool
		CapAdd, CapDrop      []string
		Devices              []struct{ PathOnHost string }
		DeviceCgroupRules    []string
		UsernsMode           string
		SecurityOpt          []string
		// ReadonlyPaths is there and empty where somebody wanted none.
		ReadonlyPaths *[]string
		RestartPolicy struct{ Name string }
		DNS           []string `json:"Dns"`
	}
	Mounts          []struct{ Type, Name, Source, Destination string }
	NetworkSettings struct {
		Networks map[string]json.RawMessage
	}
	// BoundingCaps is Podman's own; Docker says only what was asked for.
	BoundingCaps []string
	// Rootfs is Podman's own: a directory of the host's in an image's place.
	Rootfs string
}

// Inspect asks for containers by name or id, in that order.
func (e *Engine) Inspect(ctx context.Context, containers ...string) ([]Container, error) {
	if len(containers) == 0 {
		return nil, nil
	}
	args := append([]string{"container", "inspect", "--"}, containers...)
	data, err := e.output(ctx, args...)
	if err != nil {
		var failed *CommandError
		if errors.As(err, &failed) && isMissing(failed.Said) {
			return nil, fmt.Errorf("%w: %s", ErrNoContainer, strings.Join(containers, ", "))
		}
		return nil, err
	}
	return parseInspect(data)
}

func isMissing(said string) bool {
	said = strings.ToLower(said)
	return strings.Contains(said, "no such container") || strings.Contains(said, "no such object")
}

// parseInspect reads the answer of `container inspect`.
func parseInspect(data []byte) ([]Container, error) {
	var answers []inspected
	if err := json.Unmarshal(data, &answers); err != nil {
		return nil, fmt.Errorf("the engine's answer to inspect: %w", err)
	}
	containers := make([]Container, 0, len(answers))
	for _, a := range answers {
		c := Container{
			ID: a.ID, Name: strings.TrimPrefix(a.Name, "/"), Image: a.Image, Labels: a.Config.Labels,
			Running: a.State.Running, Paused: a.State.Paused, PID: a.State.Pid,
			Network: a.HostConfig.NetworkMode, PIDMode: a.HostConfig.PidMode, IPCMode: a.HostConfig.IpcMode,
			Privileged: a.HostConfig.Privileged, Restart: a.HostConfig.RestartPolicy.Name,
			DNS: a.HostConfig.DNS, Capabilities: capabilities(a),
			Rootfs:      a.Rootfs,
			DeviceRules: a.HostConfig.DeviceCgroupRules, Userns: a.HostConfig.UsernsMode,
			Unmasked:   UnmaskedBy(a.HostConfig.SecurityOpt) || a.HostConfig.ReadonlyPaths != nil && len(*a.HostConfig.ReadonlyPaths) == 0,
			Unfiltered: UnfilteredBy(a.HostConfig.SecurityOpt),
		}
		c.heedCommand(a.Config.CreateCommand)
		// A paused container runs; Podman says that it does not.
		c.Running = c.Running || c.Paused
		if c.Restart == "" {
			c.Restart = "no"
		}
		for _, m := range a.Mounts {
			c.Mounts = append(c.Mounts, Mount{m.Source, m.Destination})
			if m.Type == "volume" {
				c.Volumes = append(c.Volumes, Volume{Name: m.Name, Destination: m.Destination})
			}
		}
		for _, d := range a.HostConfig.Devices {
			c.Devices = append(c.Devices, d.PathOnHost)
		}
		for network := range a.NetworkSettings.Networks {
			c.Networks = append(c.Networks, network)
		}
		slices.Sort(c.Networks)
		containers = append(containers, c)
	}
	return containers, nil
}

// dockerDefault are the capabilities of a container that asked for nothing
// (https://docs.docker.com/engine/containers/run/#runtime-privilege-and-linux-capabilities).
func dockerDefault() []string {
	return []string{
		"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
		"NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
	}
}

// capabilities works out what a container's root can have; "ALL" stands alone.
func capabilities(a inspected) []string {
	bare := func(list []string) []string {
		names := make([]string, 0, len(list))
		for _, name := range list {
			names = append(names, strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	add, drop := bare(a.HostConfig.CapAdd), bare(a.HostConfig.CapDrop)
	switch {
	case len(a.BoundingCaps) > 0:
		return bare(a.BoundingCaps)
	case a.HostConfig.Privileged, slices.Contains(add, "ALL"):
		return []string{"ALL"}
	}
	has := dockerDefault()
	if slices.Contains(drop, "ALL") {
		has = nil
	}
	has = slices.DeleteFunc(has, func(c string) bool { return slices.Contains(drop, c) })
	return bare(append(has, add...))
}

// heedCommand takes from a `podman run` or `create` what inspect has nowhere else.
// Of words that are no options here, but the command's, it may find too much.
func (c *Container) heedCommand(args []string) {
	for i, arg := range args {
		option, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch option {
		case "--security-opt":
			c.Unmasked = c.Unmasked || UnmaskedBy([]string{value})
			c.Unfiltered = c.Unfiltered || UnfilteredBy([]string{value})
		case "--device-cgroup-rule":
			c.DeviceRules = append(c.DeviceRules, value)
		}
	}
}

// UnmaskedBy says that a --security-opt leaves /proc/sys open.
func UnmaskedBy(options []string) bool {
	return slices.ContainsFunc(options, func(o string) bool {
		o = strings.ReplaceAll(o, ":", "=")
		return o == "systempaths=unconfined" || strings.HasPrefix(o, "unmask=")
	})
}

// UnfilteredBy says that a --security-opt takes the filter of system calls away.
func UnfilteredBy(options []string) bool {
	return slices.ContainsFunc(options, func(o string) bool {
		return strings.ReplaceAll(o, ":", "=") == "seccomp=unconfined"
	})
}

// Has says whether the container's root can have a capability.
func (c Container) Has(capability string) bool {
	return slices.Contains(c.Capabilities, capability) || slices.Contains(c.Capabilities, "ALL")
}
