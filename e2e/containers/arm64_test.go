//go:build linux

package containers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// builtImage is what both engines say of an image.
type builtImage struct {
	Architecture, Os string
	Size             int64
	RootFS           struct{ Layers []string }
	Config           struct {
		Entrypoint  []string
		Env         []string
		Volumes     map[string]struct{}
		Labels      map[string]string
		Healthcheck struct{ Test []string }
	}
	HealthCheck, Healthcheck struct{ Test []string } // Podman's place for it
}

func (i builtImage) healthcheck() []string {
	return slices.Concat(i.Config.Healthcheck.Test, i.HealthCheck.Test, i.Healthcheck.Test)
}

// inspectImage asks for one image.
func (e *engine) inspectImage(t *testing.T, name string) builtImage {
	t.Helper()
	var images []builtImage
	if err := json.Unmarshal([]byte(e.do(t, "image", "inspect", name)), &images); err != nil || len(images) != 1 {
		t.Fatalf("%s: %d images, %v", name, len(images), err)
	}
	return images[0]
}

func TestTheImageForAnotherArchitecture(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		layers := map[string][]string{}
		for _, tag := range []string{"arm64-first", "arm64-second"} {
			cmd := e.program(t.Context(), "../../scripts/image")
			cmd.Env = append(cmd.Env, "TAG="+tag, "ARCH=arm64")
			e.outcome(cmd).want(t, 0, "localhost/exeat:"+tag, "localhost/exeat-harbor:"+tag)
			for name, entry := range map[string]string{"localhost/exeat": "/exeatd", "localhost/exeat-harbor": "/bin/harbor-egress"} {
				image, native := e.inspectImage(t, name+":"+tag), e.inspectImage(t, name)
				switch {
				case image.Architecture != "arm64" || image.Os != "linux":
					t.Errorf("%s: %s/%s", name, image.Os, image.Architecture)
				case native.Architecture == "arm64":
					t.Errorf("%s: the machine's own is of the same architecture: this proves nothing", name)
				case image.Size > 15_000_000:
					t.Errorf("%s: %d bytes, want 15 MB at most", name, image.Size)
				case !slices.Equal(image.Config.Entrypoint, []string{entry}):
					t.Errorf("%s: entry point %v", name, image.Config.Entrypoint)
				}
				for key, want := range native.Config.Labels {
					if has := image.Config.Labels[key]; has != want {
						t.Errorf("%s: label %s is %q, for the machine's own architecture %q", name, key, has, want)
					}
				}
				if image.Config.Labels["org.opencontainers.image.licenses"] != "Apache-2.0" {
					t.Errorf("%s: labels %v", name, image.Config.Labels)
				}
				if !slices.Equal(image.healthcheck(), native.healthcheck()) || len(image.healthcheck()) == 0 {
					t.Errorf("%s: health check %v, for the machine's own architecture %v", name, image.healthcheck(), native.healthcheck())
				}
				if _, is := image.Config.Volumes["/var/lib/exeat"]; !is {
					t.Errorf("%s: volumes %v", name, image.Config.Volumes)
				}
				if before := layers[name]; before != nil && !slices.Equal(before, image.RootFS.Layers) {
					t.Errorf("%s: two builds, layers %v and %v", name, before, image.RootFS.Layers)
				}
				layers[name] = image.RootFS.Layers
			}
		}
		t.Run("it can be carried to where it runs", func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "image.tar")
			e.do(t, "save", "--output", file, "localhost/exeat:arm64-first")
			e.do(t, "rmi", "localhost/exeat:arm64-first", "localhost/exeat:arm64-second")
			e.do(t, "load", "--input", file)
			if image := e.inspectImage(t, "localhost/exeat:arm64-first"); image.Architecture != "arm64" {
				t.Errorf("loaded, it is of architecture %s", image.Architecture)
			}
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
		})
	})
}
