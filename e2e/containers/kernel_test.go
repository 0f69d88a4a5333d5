//go:build linux

package containers

import "testing"

// TestAKernelWithoutTheEgressHook is simulated: a sandbox that has NET_RAW could go
// round the rules there, so the sidecar starts only where none has.
func TestAKernelWithoutTheEgressHook(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		old := []string{"--sidecar-arg=--env=EXEAT_NO_EGRESS_HOOK=true", "--allow", "pypi.test"}
		with := func(more ...string) []string { return append(old[:len(old):len(old)], more...) }
		t.Run("a sandbox that may have NET_RAW", func(t *testing.T) {
			name := e.fresh(t)
			e.exeat(t, append([]string{"up", name}, with()...)...).want(t, 2, "drop NET_RAW from the sandbox")
			if left := e.do(t, "ps", "--all", "--quiet", "--filter", "name=^"+name+"$"); left != "" {
				t.Errorf("a sidecar is left: %s", left)
			}
		})
		t.Run("a sandbox that has none", func(t *testing.T) {
			name, box := e.up(t, with("--allow", "git.test", "--sandbox-net-raw=no")...)
			e.guarded(t, name, box)
			late := e.alone(t, "--network", "container:"+name, "--cap-add", "NET_RAW")
			e.exeat(t, "status", name).want(t, 0, "the guard can be undone", late, "NET_RAW")
		})
		t.Run("attached to one that has NET_RAW", func(t *testing.T) {
			box := e.alone(t, "--cap-add", "NET_RAW")
			e.exeat(t, append([]string{"attach", box}, with("--sandbox-net-raw=no")...)...).want(t, 1, "NET_RAW, which the sidecar was told it has not")
			e.in(box, "true").want(t, 0) // it is not paused
			e.exeat(t, append([]string{"attach", box}, with()...)...).want(t, 2, "drop NET_RAW from the sandbox", "stays paused")
			e.do(t, "unpause", box)
		})
		t.Run("attached to one that has none", func(t *testing.T) {
			box := e.alone(t, "--cap-drop", "NET_RAW")
			e.exeat(t, append([]string{"attach", box}, with("--sandbox-net-raw=no")...)...).want(t, 0, "is guarded")
			if !e.reaches(box, "https://pypi.test/") || e.reaches(box, "https://evil.test/") {
				t.Error("it does not reach what is listed, and that alone")
			}
		})
	})
}
