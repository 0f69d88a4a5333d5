package sandbox

import (
	"slices"
	"testing"
)

// TestWhatPodmanSaysOnlyInTheCommand: its inspect has neither elsewhere.
func TestWhatPodmanSaysOnlyInTheCommand(t *testing.T) {
	for command, want := range map[string]struct {
		args     []string
		unmasked bool
		rules    []string
	}{
		"an option and its value": {[]string{"podman", "run", "--security-opt", "unmask=ALL", "--device-cgroup-rule", "b 7:* rwm", "image"}, true, []string{"b 7:* rwm"}},
		"joined":                  {[]string{"podman", "run", "--security-opt=unmask=/proc/sys", "--device-cgroup-rule=c 1:* r", "image"}, true, []string{"c 1:* r"}},
		"others":                  {[]string{"podman", "run", "--security-opt", "no-new-privileges", "image", "--security-opt"}, false, nil},
	} {
		var c Container
		c.heedCommand(want.args)
		if c.Unmasked != want.unmasked || !slices.Equal(c.DeviceRules, want.rules) {
			t.Errorf("%s: unmasked %v, rules %q", command, c.Unmasked, c.DeviceRules)
		}
	}
}
