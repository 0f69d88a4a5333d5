package firewall

import (
	"fmt"
	"strings"
	"testing"
)

// TestNoConnectionMarkIsASecret is bypass B38: /proc shows the marks of
// connections to whoever reads them.
func TestNoConnectionMarkIsASecret(t *testing.T) {
	for name, change := range map[string]func(*JoinedInput){
		"by control group":      func(*JoinedInput) {},
		"by uid and secrets":    func(in *JoinedInput) { in.Own = Own{UID: fallbackUID} },
		"with the engine's DNS": func(in *JoinedInput) { in.EngineDNS = true },
		"in lockdown":           func(in *JoinedInput) { in.Lockdown = true },
	} {
		t.Run(name, func(t *testing.T) {
			in := basicInput(compiled(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.10","pypi.test"]}`))
			in.Secrets = NewSecrets(ProbeMark)
			change(&in)
			set := 0
			for line := range strings.Lines(JoinedRuleset(in).String()) {
				if !strings.Contains(line, "ct mark set") {
					continue
				}
				set++
				for _, secret := range []uint32{in.Secrets.Mark, in.Secrets.Priority} {
					if strings.Contains(line, fmt.Sprintf("0x%08x", secret)) {
						t.Errorf("a secret becomes a connection's mark: %s", line)
					}
				}
			}
			if set == 0 && !in.Lockdown {
				t.Error("no connection is marked at all: this case shows nothing")
			}
		})
	}
}
