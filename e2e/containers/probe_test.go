//go:build linux

package containers

import (
	"strings"
	"testing"
)

// TestTheProbeInAContainer: a copy of the binary tries the catalogue with the
// container's own capabilities, finds no leak, and is gone afterwards.
func TestTheProbeInAContainer(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		box := e.alone(t)
		e.exeat(t, "attach", box, "--allow", "pypi.test").want(t, 0)
		e.exeat(t, "probe", box, "--safe").want(t, 0, " held, 0 leaks, ")
		if left := e.do(t, "exec", box, "ls", "-A", "/"); strings.Contains(left, "exeat-probe") {
			t.Errorf("left in the container: %s", left)
		}
	})
}
