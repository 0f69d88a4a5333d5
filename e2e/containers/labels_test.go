//go:build linux

package containers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pretender is a program that an image has where a sidecar has exeat, and which
// answers every call of the control API as if it had been carried out.
const pretender = `#!/bin/sh
read -r request
body='{"generation":99,"mode":"no-network","revoked":1,"took_us":10}'
printf 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' ${#body} "$body"
exec cat > /dev/null
`

// An image's labels are its container's. One that bears a sidecar's must not have
// what is meant for the sidecar said to the sandbox, which claims that it was done.
func TestAnImageDoesNotPassForTheSidecar(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		name := e.fresh(t)
		box, image, dir := name+"-box", "localhost/exeat-test/"+name, t.TempDir()
		dockerfile := "FROM " + debian + "\nLABEL io.exeat.sidecar=" + name + " io.exeat.attached=" + name + "\nCOPY exeat /exeat\n"
		for file, text := range map[string]string{"exeat": pretender, "Dockerfile": dockerfile} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		build := e.program(t.Context(), e.name, "build", "--quiet", "--tag", image, dir)
		build.Env = append(build.Env, "DOCKER_BUILDKIT=0")
		e.outcome(build).want(t, 0)
		t.Cleanup(func() { e.remove(box); e.try("rmi", "--force", image) })
		joins := strings.Fields(e.exeat(t, "up", name, "--allow", "pypi.test").want(t, 0).stdout)
		e.do(t, append(append([]string{"run", "--detach", "--name", box}, joins...), image, "sleep", "1000")...)
		if !e.reaches(box, "https://pypi.test/") {
			t.Fatal("what is allowed is not reached")
		}
		e.exeatWith(t, `"no-network"`, "policy", "set", name, "-").want(t, 0, "generation 3")
		if e.reaches(box, "https://pypi.test/") {
			t.Error("the swap was never made, and exeat says that it was")
		}
		if r := e.exeat(t, "ps").want(t, 0); strings.Count(r.stdout, name) != 1 {
			t.Errorf("one sidecar is listed as\n%s", r.stdout)
		}
	})
}
