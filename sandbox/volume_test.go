package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What Docker 20.10 and Podman 4.3 say of one volume, in short.
const (
	dockerVolume = `[{"CreatedAt":"2026-11-29T22:00:00Z","Driver":"local","Labels":{},"Mountpoint":"/var/lib/docker/volumes/v/_data",
		"Name":"v","Options":{"device":"/run","o":"bind","type":"none"},"Scope":"local"}]`
	podmanVolume = `[{"Name":"v","Driver":"local","Mountpoint":"/var/lib/containers/storage/volumes/v/_data","CreatedAt":"2026-11-29T22:00:00Z",
		"Labels":{},"Scope":"local","Options":{"device":"/run","o":"bind","type":"none"},"MountCount":0,"NeedsCopyUp":true,"NeedsChown":true}]`
	plainVolume = `[{"Driver":"local","Labels":null,"Mountpoint":"/var/lib/docker/volumes/v/_data","Name":"v","Options":null,"Scope":"local"}]`
)

func TestWhatAVolumeHoldsOfTheHosts(t *testing.T) {
	options := func(kind, o, device string) map[string]string {
		return map[string]string{"type": kind, "o": o, "device": device}
	}
	for name, c := range map[string]struct {
		volume Volume
		says   string // "" for nothing
	}{
		"a plain one":                           {Volume{Driver: "local", Known: true}, ""},
		"one of a limited size":                 {Volume{Driver: "local", Options: map[string]string{"o": "size=1g"}, Known: true}, ""},
		"one that nobody asked about":           {Volume{Driver: "local"}, "not known: the engine was not asked"},
		"a folder of the project":               {Volume{Driver: "local", Options: options("none", "bind", "/srv/task"), Known: true}, ""},
		"the host's /run":                       {Volume{Driver: "local", Options: options("none", "bind", "/run"), Known: true}, "/run is mounted at /v by the volume v, which holds /run/"},
		"the same, with what it is below":       {Volume{Driver: "local", Options: options("none", "ro,rbind", "/var/run/"), Known: true}, "which holds /run/"},
		"the same, by a type that is not heard": {Volume{Driver: "local", Options: options("tmpfs", "bind", "/run"), Known: true}, "which holds /run/"},
		"the same, without its first slash":     {Volume{Driver: "local", Options: options("none", "bind", "run"), Known: true}, "which holds /run/"},
		"the same, as a layer":                  {Volume{Driver: "local", Options: options("overlay", "lowerdir=/srv:/run,upperdir=/u,workdir=/w", "overlay"), Known: true}, "which holds /run/"},
		"everything":                            {Volume{Driver: "local", Options: options("none", "bind", "/"), Known: true}, "whole file system"},
		"the sidecar's state":                   {Volume{Driver: "local", Options: options("none", "bind", "/state"), Known: true}, "the sidecar's state is mounted"},
		"a disk":                                {Volume{Driver: "local", Options: options("ext4", "", "/dev/vg/root"), Known: true}, "/dev/vg/root (ext4), a disk"},
		"the host's processes":                  {Volume{Driver: "local", Options: options("proc", "", "proc"), Known: true}, "proc (proc), a disk or file system"},
		"memory":                                {Volume{Driver: "local", Options: options("tmpfs", "size=1m", "tmpfs"), Known: true}, ""},
		"another machine's":                     {Volume{Driver: "local", Options: options("nfs", "addr=192.0.2.1", ":/run"), Known: true}, ""},
		"another machine's, by a plugin":        {Volume{Driver: "vieux/sshfs:latest", Options: map[string]string{"sshcmd": "a@b:/run"}, Known: true}, ""},
		"a plugin's that nobody knows":          {Volume{Driver: "local-persist", Options: map[string]string{"mountpoint": "/run"}, Known: true}, "only its driver local-persist knows"},
	} {
		t.Run(name, func(t *testing.T) {
			c.volume.Name, c.volume.Destination = "v", "/v"
			var said []string
			for _, f := range Findings(Container{Network: "n", Volumes: []Volume{c.volume}}, Look{State: "/state"}) {
				said = append(said, f.String())
			}
			if text := strings.Join(said, "\n"); (c.says == "") != (text == "") || !strings.Contains(text, c.says) {
				t.Errorf("found %q, want %q", text, c.says)
			}
		})
	}
}

// scripted is an engine of one container, c1, that has the volume v at /host.
func scripted(t *testing.T, volumeInspect string) *Engine {
	t.Helper()
	engine := filepath.Join(t.TempDir(), "engine")
	script := `#!/bin/sh
case "$1 $2" in
"ps "*) echo c1 ;;
"container inspect") echo '[{"Id":"c1","Name":"/c1","State":{"Running":true},"HostConfig":{"NetworkMode":"bridge"},"Mounts":[
	{"Type":"volume","Name":"v","Source":"/var/lib/docker/volumes/v/_data","Destination":"/host"}]}]' ;;
"volume inspect") ` + volumeInspect + ` ;;
esac
`
	if err := os.WriteFile(engine, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Engine{name: "docker", path: engine}
}

// TestWhatAttachMakesOfVolumes: nothing that could not be looked at is let pass.
func TestWhatAttachMakesOfVolumes(t *testing.T) {
	for name, c := range map[string]struct{ engine, says string }{
		"a directory of the host's, by Docker": {"echo '" + dockerVolume + "'", "/run is mounted at /host by the volume v"},
		"a directory of the host's, by Podman": {"echo '" + podmanVolume + "'", "/run is mounted at /host by the volume v"},
		"a plain one":                          {"echo '" + plainVolume + "'", ""},
		"an engine that says no":               {"echo 'Error: no such volume: v' >&2; exit 1", "what the volume v at /host holds is not known: docker volume: no such volume: v"},
		"an engine that says nothing":          {"echo '[]'", "what the volume v at /host holds is not known: the engine does not know it"},
		"an engine that says something else":   {"echo nonsense", "what the volume v at /host holds is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := scripted(t, c.engine).Target(t.Context(), "c1", true, false)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// TestOneVolumeThatIsGoneHidesNoOther: engines complain of all for one.
func TestOneVolumeThatIsGoneHidesNoOther(t *testing.T) {
	e := scripted(t, `case "$*" in *gone*) echo 'Error: no such volume: gone' >&2; exit 1;; *) echo '`+dockerVolume+`';; esac`)
	c := Container{Volumes: []Volume{{Name: "gone", Destination: "/a"}, {Name: "v", Destination: "/b"}}}
	e.heedVolumes(t.Context(), []*Container{&c})
	if c.Volumes[0].Known || !strings.Contains(c.Volumes[0].Problem, "no such volume") || !c.Volumes[1].Known {
		t.Errorf("%+v", c.Volumes)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	c = Container{Volumes: []Volume{{Name: "v"}}}
	e.heedVolumes(ended, []*Container{&c})
	if c.Volumes[0].unknown() == "" {
		t.Error("an engine that was not waited for is believed")
	}
}

// TestARootDirectoryIsAMount: --rootfs takes a directory in an image's place.
func TestARootDirectoryIsAMount(t *testing.T) {
	for rootfs, says := range map[string]string{"/": "whole file system", "/run": "which holds /run/", "/srv/../run": "which holds /run/", ".": "absolute path", "/srv/debian": "", "": ""} {
		found, err := parseInspect([]byte(`[{"Id":"c1","Name":"c1","Rootfs":"` + rootfs + `","HostConfig":{"NetworkMode":"bridge"},"BoundingCaps":["CAP_CHOWN"]}]`))
		if err != nil {
			t.Fatal(err)
		}
		findings := Findings(found[0], Look{})
		if (says == "") != (len(findings) == 0) || says != "" && !strings.Contains(findings[0].String(), says) {
			t.Errorf("%q: %v, want %q", rootfs, findings, says)
		}
	}
}
