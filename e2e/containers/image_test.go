//go:build linux

package containers

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestTheImage(t *testing.T) {
	docker.need(t)
	var images []struct {
		Architecture string
		Size         int64
		RootFS       struct{ Layers []string }
		Config       struct {
			Entrypoint  []string
			Healthcheck struct{ Test []string }
			Labels      map[string]string
		}
	}
	for _, arch := range []string{"amd64", "amd64"} {
		cmd := docker.program(t.Context(), "../../scripts/image")
		cmd.Env = append(cmd.Env, "TAG=test-"+arch, "ARCH="+arch)
		docker.outcome(cmd).want(t, 0)
		one := images
		if err := json.Unmarshal([]byte(docker.do(t, "image", "inspect", "localhost/exeat:test-"+arch)), &one); err != nil {
			t.Fatal(err)
		}
		images = append(images[:len(images):len(images)], one[0])
	}
	first, second := images[0], images[1]
	if strings.Join(first.RootFS.Layers, " ") != strings.Join(second.RootFS.Layers, " ") {
		t.Errorf("two builds, layers %v and %v", first.RootFS.Layers, second.RootFS.Layers)
	}
	for _, image := range images {
		if image.Size > 15_000_000 {
			t.Errorf("%s: %d bytes, want 15 MB at most", image.Architecture, image.Size)
		}
		if image.Config.Labels["org.opencontainers.image.licenses"] != "Apache-2.0" || len(image.Config.Healthcheck.Test) == 0 || image.Config.Entrypoint[0] != "/exeatd" {
			t.Errorf("%+v", image.Config)
		}
	}
	// The engine's old builder makes images of its own architecture alone.
	dir := t.TempDir()
	cmd := docker.program(t.Context(), "../../scripts/image")
	cmd.Env = append(cmd.Env, "ARCH=arm64", "ROOTFS_ONLY="+dir)
	docker.outcome(cmd).want(t, 0)
	if _, err := os.Stat(dir + "/exeat.tar"); err != nil {
		t.Error(err)
	}
}
