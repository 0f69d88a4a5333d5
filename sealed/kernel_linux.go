package sealed

import (
	"github.com/exeat/exeat/firewall"
)

// Kernel is the sandbox's ruleset.
type Kernel struct {
	k     *firewall.Kernel
	ports map[string]uint16
}

func newKernel(k *firewall.Kernel, ports map[string]uint16) *Kernel {
	return &Kernel{k: k, ports: ports}
}
