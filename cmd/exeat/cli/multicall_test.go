//go:build linux && !image

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheImagesBinary holds what the image's one binary does under the name exeat
// where no sidecar answers. That one answers is tested in e2e/containers.
func TestTheImagesBinary(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "image,nethttpomithttp2", "-o", filepath.Join(dir, "exeatd"), "../../exeatd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	exeat := filepath.Join(dir, "exeat")
	if err := os.Symlink("exeatd", exeat); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EXEAT_CONTROL", filepath.Join(dir, "none.sock"))
	file := filepath.Join(dir, "policy.json")
	if err := os.WriteFile(file, []byte(`{"network_mode": "allowlist", "allowed_hosts": ["pypi.test"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]struct {
		status int
		says   string
	}{
		"--help":                             {0, "inside a sidecar"},
		"status":                             {3, "none.sock"},
		"status name":                        {2, `unexpected argument "name"`},
		"status --socket /no/such":           {3, "/no/such"},
		"policy get":                         {3, "none.sock"},
		"policy set " + file:                 {3, "none.sock"},
		"policy set --help":                  {0, "exeat policy set FILE|-"},
		"policy check " + file:               {0, "pypi.test"},
		"policy explain -f " + file + " a.b": {1, "unlisted"},
		"policy explain pypi.test":           {3, "none.sock"},
		"policy diff @ " + file:              {3, "none.sock"},
		"policy diff @name " + file:          {2, "write @ alone"},
		"policy diff " + file + " " + file:   {0, ""},
		"phase run":                          {3, "none.sock"},
		"logs -f":                            {3, "none.sock"},
		"flows":                              {3, "none.sock"},
		"learn":                              {3, "none.sock"},
		"probe":                              {3, "none.sock"},
		"capabilities":                       {3, "none.sock"},
		"capabilities name":                  {2, "unexpected argument"},
		"notice":                             {3, "none.sock"},
		"notice -f " + file:                  {0, "- pypi.test"},
		"plan --override run=no-network":     {0, "no-network"},
		"version":                            {0, "exeat "},
		"completion bash":                    {0, "__start_exeat"},
		"dial":                               {3, "control socket"},
		"run -- true":                        {2, "run does not work inside a sidecar"},
		"up x --allow a.test":                {2, "up does not work inside a sidecar"},
		"attach x":                           {2, "attach does not work inside a sidecar"},
		"exec x -- true":                     {2, "exec does not work inside a sidecar"},
		"compose compose.yaml":               {2, "compose does not work inside a sidecar"},
		"nonsense":                           {2, `unknown command "nonsense"`},
	} {
		r := execute(t, exeat, "", strings.Fields(line)...)
		if r.status != want.status || !strings.Contains(r.stdout+r.stderr, want.says) {
			t.Errorf("exeat %s: status %d, want %d and %q\n%s%s", line, r.status, want.status, want.says, r.stdout, r.stderr)
		}
	}
}
