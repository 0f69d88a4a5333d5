package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Volume is a volume of the engine's that a container has. What it is of, `container
// inspect` does not say: one that was not asked about is a finding.
type Volume struct {
	Name, Destination string
	Driver            string
	Options           map[string]string
	// Known says that the engine was asked; Problem is why it did not answer.
	Known   bool
	Problem string
}

// inspectedVolume is the part of `volume inspect` that both engines have.
type inspectedVolume struct {
	Name, Driver string
	Options      map[string]string
}

// heedVolumes asks the engine what the containers' volumes are, all in one call.
// One that it does not tell of is left unknown.
func (e *Engine) heedVolumes(ctx context.Context, containers []*Container) {
	var names []string
	for _, c := range containers {
		for _, v := range c.Volumes {
			names = append(names, v.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	made, problems := e.inspectVolumes(ctx, slices.Compact(names))
	for _, c := range containers {
		// Other copies of the container have the same list.
		c.Volumes = slices.Clone(c.Volumes)
		for i := range c.Volumes {
			v := &c.Volumes[i]
			if m, found := made[v.Name]; found {
				v.Driver, v.Options, v.Known = m.Driver, m.Options, true
				continue
			}
			v.Problem = "the engine does not know it"
			if err := problems[v.Name]; err != nil {
				v.Problem = err.Error()
			}
		}
	}
}

// inspectVolumes gives volumes by name, and why one can't be told of. If the engine
// complains of several, they are asked for one by one: it tells of none otherwise,
// and does not always say which it does not like.
func (e *Engine) inspectVolumes(ctx context.Context, names []string) (map[string]inspectedVolume, map[string]error) {
	made, problems := map[string]inspectedVolume{}, map[string]error{}
	volumes, err := e.askVolumes(ctx, names...)
	var failed *CommandError
	switch {
	case err == nil:
	case len(names) > 1 && errors.As(err, &failed):
		for _, name := range names {
			one, err := e.askVolumes(ctx, name)
			volumes = append(volumes, one...)
			problems[name] = err
		}
	default:
		for _, name := range names {
			problems[name] = err
		}
	}
	for _, v := range volumes {
		made[v.Name] = v
	}
	return made, problems
}

func (e *Engine) askVolumes(ctx context.Context, names ...string) ([]inspectedVolume, error) {
	data, err := e.output(ctx, append([]string{"volume", "inspect", "--"}, names...)...)
	if err != nil {
		return nil, err
	}
	return parseVolumes(data)
}

// parseVolumes reads the answer of `volume inspect`.
func parseVolumes(data []byte) ([]inspectedVolume, error) {
	var volumes []inspectedVolume
	if err := json.Unmarshal(data, &volumes); err != nil {
		return nil, fmt.Errorf("the engine's answer to volume inspect: %w", err)
	}
	return volumes, nil
}

// distant are file systems, and drivers of volumes, that hold nothing of the host's:
// other machines', an image's, or memory.
func distant() []string {
	return []string{
		"tmpfs", "image",
		"nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "afs", "fuse.sshfs",
		"sshfs", "docker-volume-sshfs", "netshare", "docker-volume-netshare", "docker-volume-rclone", "rclone",
		"azurefile", "cloudstor", "efs", "s3fs", "rexray", "rbd", "portworx", "pxd", "longhorn",
	}
}

// unknown says why it is not known whether a volume holds something of the host's;
// "" where it is.
func (v Volume) unknown() string {
	if !v.Known {
		return cmp.Or(v.Problem, "the engine was not asked")
	}
	// A plugin's name may have a registry and a tag: vieux/sshfs:latest.
	driver, _, _ := strings.Cut(path.Base(v.Driver), ":")
	if !v.local() && !slices.Contains(distant(), driver) {
		return "only its driver " + v.Driver + " knows"
	}
	return ""
}

func (v Volume) local() bool { return v.Driver == "local" || v.Driver == "" }

// directories are those of the host's that a volume of the local driver is, or is
// made of (mount(8)).
func (v Volume) directories() []string {
	if !v.local() {
		return nil
	}
	device, options := v.Options["device"], strings.Split(v.Options["o"], ",")
	bound := slices.ContainsFunc(options, func(o string) bool { return o == "bind" || o == "rbind" })
	switch kind := v.Options["type"]; {
	case device == "":
		return nil
	// The kernel heeds no type where it is told to bind.
	case bound, kind == "", kind == "none", kind == "bind":
		return []string{path.Join("/", device)} // the engine's working directory
	case kind == "overlay":
		var layers []string
		for _, o := range options {
			if key, value, _ := strings.Cut(o, "="); strings.HasPrefix(key, "lowerdir") || key == "upperdir" {
				layers = append(layers, strings.FieldsFunc(value, func(r rune) bool { return r == ':' })...)
			}
		}
		return layers
	}
	return nil
}

// disk is a disk of the host's, or a file system of its kernel's, that a volume of the
// local driver mounts; "" where it mounts none.
func (v Volume) disk() string {
	kind, device := v.Options["type"], v.Options["device"]
	if !v.local() || device == "" || len(v.directories()) > 0 || slices.Contains(distant(), kind) {
		return ""
	}
	return fmt.Sprintf("%s (%s)", device, kind)
}
