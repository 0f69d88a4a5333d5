package compose

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the goldens of testdata anew")

func TestOverridesOfAShop(t *testing.T) {
	t.Setenv("COMPOSE_PROJECT_NAME", "shop")
	for name, o := range map[string]Options{
		"override":    {Sidecar: []string{"--allow=pypi.test"}},
		"per-service": {PerService: true},
		"full":        {Sidecar: []string{"--policy=/etc/exeat/policy.json"}, Mounts: []string{"/p.json:/etc/exeat/policy.json:ro"}},
	} {
		t.Run(name, func(t *testing.T) {
			project, err := Load(t.Context(), []string{"testdata/shop.yaml"})
			if err != nil {
				t.Fatal(err)
			}
			plan, err := Make(project, o)
			if err != nil {
				t.Fatal(err)
			}
			write := plan.Override
			if name == "full" {
				write = plan.Full
			}
			got, err := write()
			if err != nil {
				t.Fatal(err)
			}
			golden := "testdata/shop." + name + ".golden"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("%s differs (-update writes it anew):\n%s", golden, got)
			}
		})
	}
}

func TestWhatCannotBePutBehindASidecarIsRefused(t *testing.T) {
	for says, services := range map[string]string{
		"both listen on 80/tcp":                      `{a: {image: x, ports: ["80"]}, b: {image: x, expose: ["80"]}}`,
		"network_mode host":                          `{a: {image: x, network_mode: host}}`,
		"network_mode none":                          `{a: {image: x, network_mode: none}}`,
		"network_mode container:other":               `{a: {image: x, network_mode: "container:other"}}`,
		"it is privileged":                           `{a: {image: x, privileged: true}}`,
		"capability NET_ADMIN":                       `{a: {image: x, cap_add: [CAP_NET_ADMIN]}}`,
		"it has the capability NET_RAW":              `{a: {image: x, cap_add: [NET_RAW]}}`,
		"start both with the same --userns":          `{a: {image: x, userns_mode: host}}`,
		"without --device-cgroup-rule":               `{a: {image: x, device_cgroup_rules: ["b *:* rwm"]}}`,
		"without --security-opt systempaths":         `{a: {image: x, security_opt: ["systempaths=unconfined"]}}`,
		"/run/docker.sock is mounted at /s":          `{a: {image: x, volumes: ["vol:/s"]}}` + "\nvolumes: {vol: {driver_opts: {type: none, o: bind, device: /run/docker.sock}}}",
		"shares the PID namespace":                   `{a: {image: x, pid: host}}`,
		"without --security-opt seccomp":             `{a: {image: x, security_opt: ["seccomp:unconfined"]}}`,
		"/var/run/docker.sock is mounted at":         `{a: {image: x, use_api_socket: true}}`,
		"/run/docker.sock is mounted at /s2":         `{a: {image: x, secrets: [{source: s, target: /s2}]}}` + "\nsecrets: {s: {file: /run/docker.sock}}",
		"/run/docker.sock is mounted at /c":          `{a: {image: x, configs: [{source: c, target: /c}]}}` + "\nconfigs: {c: {file: /run/docker.sock}}",
		"hook is privileged":                         `{a: {image: x, post_start: [{command: id, privileged: true}]}}`,
		"volumes of container other":                 `{a: {image: x, volumes_from: ["container:other"]}}`,
		"shares the IPC namespace":                   `{a: {image: x, ipc: host}}`,
		"a program of the host's":                    `{a: {provider: {type: x}}}`,
		"/var/run/docker.sock is mounted":            `{a: {image: x, volumes: ["/var/run/docker.sock:/var/run/docker.sock"]}}`,
		"the sidecar would be called so":             `{exeat: {image: x}}`,
		"3 replicas would share":                     `{a: {image: x, scale: 3}}`,
		"sysctl net.ipv4.ip_forward":                 `{a: {image: x, sysctls: {net.ipv4.ip_forward: "1"}}}`,
		"mac_address":                                `{a: {image: x, mac_address: "02:42:ac:11:65:43"}}`,
		"10.1.0.3 in network n: the namespace has 1": `{a: {image: x, networks: {n: {ipv4_address: 10.1.0.2}}}, b: {image: x, networks: {n: {ipv4_address: 10.1.0.3}}}}`,
	} {
		t.Run(says, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "compose.yaml")
			if err := os.WriteFile(file, []byte("name: p\nnetworks: {n: {}}\nservices: "+services+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			project, err := Load(t.Context(), []string{file})
			if err != nil {
				t.Fatal(err)
			}
			_, err = Make(project, Options{})
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("error %v, want one that says %q", err, says)
			}
		})
	}
}
