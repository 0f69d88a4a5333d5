//go:build linux

package containers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheReadme runs every block of the README's part on containers, as it is
// written but for the names of the internet and of the image.
func TestTheReadme(t *testing.T) {
	docker.need(t)
	podman.need(t)
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	part := string(text)
	begin, end := strings.Index(part, "\n## Containers\n"), strings.Index(part, "\n## More\n")
	if begin < 0 || end < begin {
		t.Fatal("the README has no part on containers")
	}
	part = part[begin:end]
	world := strings.NewReplacer("files.pythonhosted.org", "files.test", "pypi.org", "pypi.test", "python:3", debian)
	blocks := indented(part)
	for _, title := range []string{"## Containers", "### Podman", "### Compose", "### Harbor", "### The API"} {
		_, section, there := strings.Cut(part, "\n"+title+"\n")
		section, _, _ = strings.Cut(section, "\n###")
		if !there || len(indented(section)) == 0 {
			t.Errorf("no block under %q", title)
		}
	}
	if strings.Contains(part, "```") {
		t.Error("a fenced block: the README's are indented, and only those are run")
	}
	dir := t.TempDir()
	project := "services: {app: {image: " + debian + ", command: [sleep, '600']}}\n"
	if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte(project), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := readersPath(t)
	for _, block := range blocks {
		t.Run(strings.SplitN(block, "\n", 2)[0], func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-euc", world.Replace(block))
			cmd.Dir = dir
			for _, v := range append(docker.env, "CONTAINERS_CONF="+podman.file("containers.conf")) {
				if !strings.HasPrefix(v, "EXEAT_ENGINE=") && !strings.HasPrefix(v, "PATH=") {
					cmd.Env = append(cmd.Env, v)
				}
			}
			cmd.Env = append(cmd.Env, "PATH="+bin+":"+filepath.Join(scratch, "bin")+":"+os.Getenv("PATH"))
			docker.outcome(cmd).want(t, 0)
		})
	}
}

// readersPath has exeat, and docker with Compose for a plug-in.
func readersPath(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	plugins := filepath.Join(docker.file("config"), "cli-plugins")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	// Podman reads it, too, and wants it there.
	if err := os.WriteFile(filepath.Join(docker.file("config"), "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		filepath.Join(scratch, "exeat"): filepath.Join(bin, "exeat"), filepath.Join(scratch, "docker-compose"): filepath.Join(plugins, "docker-compose"),
	} {
		if err := os.Symlink(from, to); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	return bin
}

// indented gives the blocks of lines that four spaces set off.
func indented(text string) []string {
	var blocks []string
	var block []string
	for line := range strings.Lines(text + "\nthe end") {
		if code, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "    "); ok {
			block = append(block, code)
			continue
		}
		if len(block) > 0 {
			blocks = append(blocks, strings.Join(block, "\n"))
			block = nil
		}
	}
	return blocks
}
