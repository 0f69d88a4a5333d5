//go:build linux

package joined

import (
	"testing"

	"github.com/exeat/exeat/control/api"
)

func TestItSaysWhatItIsAndProvesIt(t *testing.T) {
	s := start(t, "--allow", "pypi.test", "--name", "task-17")
	status, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status.Shape != "joined" || status.Name != "task-17" || status.OwnTraffic == "" || !status.Ready {
		t.Errorf("status %+v", status)
	}
	report, err := s.Probe(t.Context(), api.ProbeRequest{})
	if err != nil || report.Leaks > 0 || report.Held < 5 {
		t.Errorf("probe: %+v, %v", report, err)
	}
	capabilities, err := s.Capabilities(t.Context())
	if err != nil || capabilities.NetworkAllowlistHostnames == nil || !*capabilities.NetworkAllowlistHostnames {
		t.Errorf("capabilities %+v, %v", capabilities, err)
	}
	s.stop(t)
	if s.Stderr.String() != "" {
		t.Errorf("it complained: %s", s.Stderr.String())
	}
}
