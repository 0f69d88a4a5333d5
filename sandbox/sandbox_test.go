package sandbox

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func inspect(t *testing.T, file string) Container {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file + ".json")
	if err != nil {
		t.Fatal(err)
	}
	found, err := parseInspect(data)
	if err != nil || len(found) != 1 {
		t.Fatalf("%d containers, error %v", len(found), err)
	}
	return found[0]
}

func TestWhatEnginesSayOfAContainer(t *testing.T) {
	for _, name := range []string{"docker", "podman"} {
		t.Run(name, func(t *testing.T) {
			c, joined := inspect(t, name), inspect(t, name+"-joined")
			if !c.Running || c.PID == 0 || c.Restart != "no" || c.Owner() != "" {
				t.Errorf("%+v", c)
			}
			if c.Has("NET_RAW") || c.Has("NET_ADMIN") || !c.Has("SETUID") || !joined.Has("NET_RAW") {
				t.Errorf("capabilities %v and %v", c.Capabilities, joined.Capabilities)
			}
			if joined.Owner() != c.ID {
				t.Errorf("owner %q, want %q", joined.Owner(), c.ID)
			}
			if f := Findings(c, Look{}); len(f) != 0 {
				t.Errorf("findings %v", f)
			}
		})
	}
}

func TestFindings(t *testing.T) {
	for _, c := range []struct {
		name      string
		container Container
		look      Look
		says      string // "" for nothing
	}{
		{"an ordinary container", Container{Network: "bridge", Capabilities: dockerDefault()}, Look{NetRaw: true}, ""},
		{"a folder of the project", Container{Network: "n", Mounts: []Mount{{"/srv/task", "/task"}}}, Look{}, ""},
		{"a volume of the engine's", Container{Network: "n", Mounts: []Mount{{"/var/lib/docker/volumes/x/_data", "/data"}}}, Look{}, ""},
		{"localtime", Container{Network: "n", Mounts: []Mount{{"/etc/localtime", "/etc/localtime"}}}, Look{}, ""},
		{"a device that is no way out", Container{Network: "n", Devices: []string{"/dev/fuse", "/dev/dri"}}, Look{}, ""},
		{"privileged", Container{Network: "n", Privileged: true, Capabilities: []string{"ALL"}}, Look{}, "privileged"},
		{"NET_ADMIN", Container{Network: "n", Capabilities: []string{"NET_ADMIN"}}, Look{}, "--cap-drop NET_ADMIN"},
		{"every capability", Container{Network: "n", Capabilities: []string{"ALL"}}, Look{NetRaw: true}, "BPF"},
		{"NET_RAW that was denied", Container{Network: "n", Capabilities: []string{"NET_RAW"}}, Look{}, "--sandbox-net-raw=yes"},
		{"the host's network", Container{Network: "host"}, Look{}, "host's network"},
		{"no network", Container{Network: "none"}, Look{}, "nothing to guard"},
		{"another's network", Container{Network: "container:abc"}, Look{}, "attach to that container"},
		{"ours", Container{Network: "container:abc"}, Look{Joined: true}, ""},
		{"another's processes", Container{Network: "n", PIDMode: "container:abc"}, Look{}, "PID namespace"},
		{"Docker's socket", Container{Network: "n", Mounts: []Mount{{"/var/run/docker.sock", "/s"}}}, Look{}, "not guarded"},
		{"Docker's socket by its own name", Container{Network: "n", Mounts: []Mount{{"/srv/x/docker.sock", "/s"}}}, Look{}, "not guarded"},
		{"Podman's, rootless", Container{Network: "n", Mounts: []Mount{{"/run/user/1000/podman/podman.sock", "/s"}}}, Look{}, "not guarded"},
		{"a folder that holds sockets", Container{Network: "n", Mounts: []Mount{{"/var/run", "/r"}}}, Look{}, "which holds /run/"},
		{"our control sockets", Container{Network: "n", Mounts: []Mount{{"/run/exeat", "/r"}}}, Look{}, "control sockets"},
		{"the engine's storage", Container{Network: "n", Mounts: []Mount{{"/var/lib", "/r"}}}, Look{}, "every container's files"},
		{"everything", Container{Network: "n", Mounts: []Mount{{"/", "/host"}}}, Look{}, "whole file system"},
		{"a disk", Container{Network: "n", Devices: []string{"/dev/sda"}}, Look{}, "a disk"},
		{"a disk by another name", Container{Network: "n", Devices: []string{"/dev/disk/by-uuid/1"}}, Look{}, "a disk"},
		{"the host's vsock", Container{Network: "n", Devices: []string{"/dev/vhost-vsock"}}, Look{}, "services of the host's"},
		{"devices of its own making", Container{Network: "n", DeviceRules: []string{"b *:* rwm"}}, Look{}, "device-cgroup-rule"},
		{"/proc/sys", Container{Network: "n", Unmasked: true}, Look{}, "systempaths"},
		{"the host's shared memory", Container{Network: "n", IPCMode: "host"}, Look{}, "--ipc host"},
		{"another's shared memory", Container{Network: "n", IPCMode: "container:abc"}, Look{}, "with others than this sandbox's"},
		{"shared memory by a namespace's path", Container{Network: "n", IPCMode: "ns:/proc/1/ns/ipc"}, Look{}, "with others than this sandbox's"},
		{"shared memory within the sandbox", Container{IPCMode: "container:abc"}, Look{Joined: true, Beside: []Container{{Name: "abc"}}}, ""},
		{"its own shared memory", Container{Network: "n", IPCMode: "private"}, Look{}, ""},
		{"no filter of system calls", Container{Unfiltered: true}, Look{Joined: true}, "seccomp=unconfined"},
		{"every device", Container{Network: "n", Devices: []string{"/dev/"}}, Look{}, "its disks among them"},
		{"a folder of disks", Container{Network: "n", Devices: []string{"/dev/mapper"}}, Look{}, "a disk"},
		{"a disk by its generic device", Container{Network: "n", Devices: []string{"/dev/sg0"}}, Look{}, "a disk"},
		{"a terminal", Container{Network: "n", Devices: []string{"/dev/ttyUSB0"}}, Look{}, ""},
		{"both in one user namespace", Container{Userns: "private"}, Look{Joined: true, Userns: "private"}, ""},
		{"a user namespace inside of the sidecar's", Container{Userns: "keep-id"}, Look{Joined: true}, ""},
		{"the host's user namespace, by its name or not", Container{}, Look{Joined: true, Userns: "host"}, ""},
		{"outside of the sidecar's user namespace", Container{}, Look{Joined: true, Userns: "auto"}, "same --userns"},
		{"outside of the daemon's user namespace", Container{Userns: "host"}, Look{Joined: true}, "same --userns"},
		{"the sidecar's state", Container{Mounts: []Mount{{"/var/lib/docker/volumes/x/_data", "/var/lib/exeat"}}}, Look{Joined: true, State: "/var/lib/docker/volumes/x/_data"}, "--volumes-from"},
		{"the memory", Container{Network: "n", Devices: []string{"/dev/mem"}}, Look{}, "memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := Findings(c.container, c.look)
			text := ""
			for _, f := range found {
				text += f.String() + "\n"
				if f.Remedy == "" {
					t.Errorf("no remedy: %s", f)
				}
			}
			if (c.says == "") != (len(found) == 0) || !strings.Contains(text, c.says) {
				t.Errorf("found %q, want %q", text, c.says)
			}
		})
	}
}

func TestWhoIsBehindASidecar(t *testing.T) {
	admin := []string{"NET_ADMIN"}
	all := []Container{
		{ID: "owner", Name: "task", Capabilities: admin, Labels: map[string]string{LabelSidecar: "task"}},
		{ID: "agent", Name: "agent", Network: "container:owner"},
		{ID: "other", Name: "other", Network: "bridge"},
		{ID: "web", Name: "web", Network: "bridge"},
		{ID: "guard", Name: "web-exeat", Network: "container:web", Capabilities: admin, Labels: map[string]string{LabelSidecar: "web", labelAttached: "web"}},
		{ID: "helper", Name: "helper", Network: "container:web"},
	}
	want := map[string][]string{"task": {"agent"}, "web": {"web", "helper"}}
	for _, car := range sidecarsOf(all) {
		var behind []string
		for _, c := range car.Joined {
			behind = append(behind, c.Name)
		}
		if !slices.Equal(behind, want[car.Title()]) {
			t.Errorf("behind %s: %v, want %v", car.Title(), behind, want[car.Title()])
		}
	}
	for name, says := range map[string]string{"web": "guarded already", "web-exeat": "a sidecar itself", "none": "no such container"} {
		if _, err := targetOf(all, name, true); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("attach to %s: %v, want %q", name, err, says)
		}
	}
	if _, err := targetOf(all, "other", true); err != nil {
		t.Error(err)
	}
}

// An image's labels are its containers'.
func TestALabelMakesNoSidecar(t *testing.T) {
	admin := []string{"NET_ADMIN"}
	pretends := map[string]string{LabelSidecar: "task", labelAttached: "other"}
	all := []Container{
		{ID: "agent", Name: "agent", Network: "container:owner", Labels: pretends},
		{ID: "owner", Name: "task", Capabilities: admin, Labels: map[string]string{LabelSidecar: "task"}},
		{ID: "other", Name: "other", Network: "bridge", Labels: pretends},
		{ID: "one", Name: "a-exeat-1", Capabilities: admin, Labels: map[string]string{LabelSidecar: "exeat"}},
		{ID: "two", Name: "b-exeat-1", Capabilities: admin, Labels: map[string]string{LabelSidecar: "exeat"}},
	}
	for name, want := range map[string]string{"task": "owner", "agent": "owner", "other": "", "b-exeat-1": "two", "exeat": ""} {
		car, err := lookup(all, name)
		if car.ID != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, error %v; want %q", name, car.ID, err, want)
		}
	}
	if _, err := targetOf(all, "other", true); err != nil {
		t.Errorf("attach to one that its image calls a sidecar: %v", err)
	}
}

func TestTheSidecarsCommandLine(t *testing.T) {
	got := strings.Join(Spec{
		Name: "task", Image: "img", Network: "net", Publish: []string{"80:80"}, FindResolver: true, NoNetRaw: true,
		EngineArgs: []string{"--memory=64m"}, Args: []string{"--floor=a.test"},
	}.runArgs(), " ")
	want := "run --detach --name task --label io.exeat.sidecar=task --cap-drop ALL --security-opt no-new-privileges --read-only " +
		"--tmpfs /run/exeat:rw,nosuid,nodev,noexec,size=1m,mode=0700 --volume /var/lib/exeat --cap-add NET_ADMIN --cap-add SETUID " +
		"--cap-add SETGID --cap-add SETPCAP --network net --label io.exeat.no-net-raw=yes --publish 80:80 --memory=64m img " +
		"--control /run/exeat/control.sock --state /var/lib/exeat --sandbox-net-raw=no --resolver-from-file --floor=a.test"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPublishedPorts(t *testing.T) {
	for publish, want := range map[string]string{
		"80": "80", "8080:80": "80", "127.0.0.1:8080:80/udp": "80/udp", "[::1]:8080:80": "80", "127.0.0.1::80": "80",
		"8080:": "", "80/sctp": "", "x": "",
	} {
		got, err := InboundPort(publish)
		if (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("%q: %q, error %v; want %q", publish, got, err, want)
		}
	}
}

func TestEventsOfBothEngines(t *testing.T) {
	for line, want := range map[string]Event{
		`{"status":"start","id":"e3","Type":"container","Action":"start","time":1,"timeNano":1500000000}`: {"start", time.Unix(1, 5e8)},
		`{"status":"die","Type":"container","time":1,"timeNano":1}`:                                       {"die", time.Unix(0, 1)},
		`{"ID":"0c","Name":"x","Status":"start","Time":"2026-01-02T03:04:05Z","Type":"container"}`:        {"start", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		`{"ID":"0c","Name":"x","Status":"died","Time":"2026-01-02T03:04:05Z","Type":"container"}`:         {"die", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		`{"status":"exec_start","Type":"container","time":1}`:                                             {},
		`{"Type":"network","Action":"connect","time":1}`:                                                  {},
	} {
		got, err := parseEvent([]byte(line))
		if err != nil || got.What != want.What || !got.Time.Equal(want.Time) {
			t.Errorf("%s: %+v, error %v; want %+v", line, got, err, want)
		}
	}
	if _, err := parseEvent([]byte("no JSON")); err == nil {
		t.Error("no error of a line that is no JSON")
	}
}

func TestNameservers(t *testing.T) {
	got := nameservers("# by the engine\nnameserver 10.89.0.1\nnameserver 127.0.0.11\nnameserver 2001:db8::53\nsearch x\nnameserver bad\n")
	if want := []string{"--resolver=10.89.0.1", "--resolver=2001:db8::53"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
