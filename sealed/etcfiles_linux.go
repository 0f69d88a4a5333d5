package sealed

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// resolvConf is the sandbox's /etc/resolv.conf: our resolver, the host's search
// domains and what else of the options changes which names are asked.
func resolvConf(host string, search []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# made by exeat; every question, whatever its destination, reaches its resolver\nnameserver %s\n", AddressIPv4)
	var options, hostSearch []string
	for line := range strings.Lines(host) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "search" || f[0] == "domain":
			hostSearch = f[1:] // the last one counts, resolv.conf(5)
		case f[0] == "options":
			for _, o := range f[1:] {
				if strings.HasPrefix(o, "ndots:") {
					options = append(options, o)
				}
			}
		}
	}
	if search == nil {
		search = hostSearch
	}
	if len(search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(search, " "))
	}
	if len(options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(options, " "))
	}
	return b.String()
}

// nsSwitch is the host's nsswitch.conf with names looked up in /etc/hosts and by
// DNS alone: everything else asks a service of the host (bypass B72).
func nsSwitch(host string) string {
	var b strings.Builder
	seen := false
	for line := range strings.Lines(host) {
		name, _, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == "hosts" {
			if !seen {
				b.WriteString("hosts: files dns\n")
			}
			seen = true
			continue
		}
		b.WriteString(line)
	}
	if !seen {
		if s := b.String(); s != "" && !strings.HasSuffix(s, "\n") {
			b.WriteByte('\n')
		}
		b.WriteString("hosts: files dns\n")
	}
	return b.String()
}

// hostsFileWith is the host's /etc/hosts with our lines before it, since the
// first one counts.
func hostsFileWith(host string, add []HostEntry) string {
	var b strings.Builder
	for _, e := range add {
		for _, a := range e.Addrs {
			fmt.Fprintf(&b, "%s %s\n", a, e.Name)
		}
	}
	b.WriteString(host)
	return b.String()
}

// readIfThere reads a file that may not exist.
func readIfThere(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}
